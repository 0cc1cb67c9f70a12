"""What sorts of servers answer: SGLang, TGI and llama.cpp on their own routes; vectors, scores, classes, tokens."""

from tests.replies.harness import *

# fmt: off
STOP, LENGTH = {"type": "stop", "matched": 2}, {"type": "length", "length": 2}


def ended(text, finish_reason, usage):
    return {"text": text, "finish_reason": finish_reason, "usage": Usage(*usage)}


def sglang(*prompts, **options):
    return asked(*prompts, dialect="sglang", **options)


def item(text, finish=None, prompt_tokens=3, index=LEFT_OUT, **meta):
    return fields_of(text=text, output_ids=[7, 8], index=index,
                     meta_info={"prompt_tokens": prompt_tokens, "completion_tokens": 2, "finish_reason": finish,
                                **meta})


SGLANG = [
    Case("SGLang answers one prompt with an object", sglang("a", streamed=False), written(item("one", STOP)),
         {0: ended("one", "stop", (3, 2))}),
    Case("SGLang answers several prompts with an array", sglang("a", "b", streamed=False),
         written([item("one", STOP), item("two", LENGTH, 4)]),
         {0: ended("one", "stop", (3, 2)), 1: ended("two", "length", (4, 2))}),
    Case("SGLang's choices of a prompt stand together", sglang("a", "b", n=2, streamed=False),
         written([item(text, LENGTH) for text in "wxyz"]),
         {0: ["w", "x"], 1: ["y", "z"]}),
    Case("SGLang's choices of a prompt are counted together", sglang("a", n=2, streamed=False),
         written([item(text, LENGTH) for text in "wx"]),
         {0: {"usage": Usage(3, 4)}}),
    Case("An array of SGLang's that is too short is no answer", sglang("a", "b", streamed=False),
         written([item("one", STOP)]), {}, fault("MISMATCH", "DemuxError")),
    Case("An abort of SGLang's is what its status says", sglang("a", "b", max_tokens=20),
         stream(item("one", STOP, index=0),
                item("t", {"type": "abort", "message": "Retracted under decode memory pressure", "status_code": 503},
                     index=1)),
         {0: ended("one", "stop", (3, 2))}, fault("REJECTED", "ServerFault", status=503)),
]


def sglang_streams():
    words, ids = ["on", "e t", "wo", "!"], [4, 5, 6, 7]
    for incremental in (False, True):
        def event_of(index, before, now, finish=None):
            start = before if incremental else 0
            told = [[-0.5, ids[i], words[i]] for i in range(start, now)]
            each = item("".join(words[start:now]), finish, index=index, completion_tokens=now,
                        output_token_logprobs=told)
            return each | {"output_ids": ids[start:now]}

        events = [event_of(1, 0, 1), event_of(0, 0, 2), event_of(1, 1, 3), event_of(0, 2, 4, LENGTH),
                  event_of(1, 3, 4, STOP)]
        shown = {"text": "one two!", "choice.token_ids": (4, 5, 6, 7), "choice.logprobs.tokens": words,
                 "choice.logprobs.text_offset": [0, 2, 5, 7], "usage": Usage(3, 4)}
        yield Case(f"SGLang's streams are read whose events {'go on' if incremental else 'repeat the whole text'}",
                   sglang("a", "b", max_tokens=20, return_token_ids=True, logprobs=1), stream(*events),
                   {0: shown, 1: shown})
    for spoil in ({"meta_info": None}, {"text": 5}, {"meta_info": {"finish_reason": 5}}):
        items = [item("t", STOP, index=0), item("t", STOP, index=1) | spoil]
        name = f"An item of SGLang's that cannot be read fails alone: {spoil}"
        yield Case(f"{name} (plain)", sglang("p", "q", streamed=False), written(items), {0: "t"}, "REFUSED")
        yield Case(f"{name} (streamed)", sglang("p", "q"), stream(*items), {0: "t"}, "REFUSED")
        yield Case(f"{name} (streamed first)", sglang("p", "q"), stream(*items[::-1]), {0: "t"}, "REFUSED")


# TGI -----------------------------------------------------------------------------------------------------------------


def tgi():
    ends = stream(piece("x", "", 1), piece("y", ""), piece("z", "eos_token", 1, tokens(4, 2)),
                  piece("w", "length", 0, tokens(3, 2)))
    yield Case("An empty finish_reason of TGI's is none",
               asked("a", "b", dialect="tgi", max_tokens=20, content_type="text/event-stream"), ends,
               {0: ended("yw", "length", (3, 2)), 1: ended("xz", "stop", (4, 2))})
    for pieces in (["a", "b##", "#"], ["ab#", "##"], ["ab###"], ["a", "b#", "#", "#"], ["ab###x"], ["ab#", "##x", ""]):
        made = [piece(text, "") for text in pieces[:-1]] + [piece(pieces[-1], "stop_sequence", usage=tokens(3, 4))]
        yield Case(f"The stop string that ended an answer of TGI's is not in it: {pieces}",
                   asked("p", dialect="tgi", max_tokens=20, stop=["###"]), stream(*made),
                   {0: ended("ab", "stop", (3, 4))})
    yield Case("The stop string that ended a plain answer of TGI's is not in it",
               asked("p", dialect="tgi", max_tokens=20, stop="###", streamed=False),
               plain(choice(0, "ab###", "stop_sequence"), usage=tokens(3, 4)), {0: ended("ab", "stop", (3, 4))})
    yield Case("What looked like the beginning of a stop string is kept",
               asked("p", dialect="tgi", max_tokens=20, stop=["###"]),
               stream(piece("a#", ""), piece("b##", ""), piece("", "length", usage=tokens(3, 4))), {0: "a#b##"})
    question = "Q: 2+2?\nA:"
    echoing = {"dialect": "openai", "echo": True, "stop": ["\n"]}
    for what, text, shown in (("has", f"{question} 4\nQ", f"{question} 4"), ("has no", f"{question} 4", f"{question} 4"),
                              ("ends with half a", f"{question} 4\n", f"{question} 4")):
        yield Case(f"A stop string in an echoed prompt ends no answer; the answer {what} stop string",
                   asked(question, **echoing, streamed=False), plain(choice(0, text)), {0: shown})
        yield Case(f"A stop string in an echoed prompt ends no streamed answer; the answer {what} stop string",
                   asked(question, **echoing), stream(*map(piece, text), piece("", "stop")), {0: shown})
    yield Case("Each prompt of a list has an echo of its own", asked("a\nb", "c\n", **echoing, streamed=False),
               plain(choice(1, "c\nd\n"), choice(0, "a\nbx\ny")), {0: "a\nbx", 1: "c\nd"})
    yield Case("Where a server does not echo, the stop string ends the answer", asked("a\nb", **echoing, streamed=False),
               plain(choice(0, "x\ny")), {0: "x"})
    yield Case("The echo of token ids is not known, and nothing is cut", asked([1, 2], **echoing, streamed=False),
               plain(choice(0, "a\nb")), {0: "a\nb"})


# llama.cpp -----------------------------------------------------------------------------------------------------------


def llamacpp(*prompts, **options):
    return asked(*prompts, dialect="llamacpp", **options)


def result(index, text, stop_type=None, made=2, **fields):
    return {"index": index, "content": text, "stop": stop_type is not None, "stop_type": stop_type,
            "tokens_evaluated": 3, "tokens_predicted": made, **fields}


LLAMACPP = [
    Case("llama.cpp's results are read each with its usage", llamacpp("a", "b", streamed=False),
         written([result(1, "two", "word", 3, stopping_word="x"), result(0, "one", "limit")]),
         {0: ended("one", "length", (3, 2)), 1: ended("two", "stop", (3, 3))}),
    Case("llama.cpp's stream begins with null and ends without a word", llamacpp("a", "b", max_tokens=20),
         stream(None, result(0, "o", made=1), result(1, "tw"), result(0, "ne"), result(0, "", "eos"),
                result(1, "o", made=3), result(1, "", "limit", 3), done=False),
         {0: ended("one", "stop", (3, 2)), 1: ended("two", "length", (3, 3))}),
    Case("What llama.cpp broke off is a fault", llamacpp("a", streamed=False), written(result(0, "one", "none")), {},
         fault("MAYBE_PROCESSED", "ServerFault")),
]


def llamacpp_spoilt():
    for spoil in ({"content": None}, {"content": 5}, {"stop_type": []}):
        items = [result(0, "t", "eos") | spoil, result(1, "t", "eos")]
        yield Case(f"A result of llama.cpp's that cannot be read fails alone: {spoil} (plain)",
                   llamacpp("p", "q", streamed=False), written(items), {1: "t"}, "REFUSED")
        yield Case(f"A result of llama.cpp's that cannot be read fails alone: {spoil} (streamed)", llamacpp("p", "q"),
                   stream(*items), {1: "t"}, "REFUSED")


# Calls that generate nothing -----------------------------------------------------------------------------------------

ITEMS = [
    (Kind.EMBEDDING, ["a", "b"], {"embedding": [1.0]},
     [{"embedding": None}, {"embedding": 5}, {"embedding": ["x"]}, {}]),
    (Kind.SCORE, [["q", "a"], ["r", "b"]], {"score": 1.0}, [{"score": None}, {"score": "1"}, {}]),
    (Kind.CLASSIFICATION, ["a", "b"], {"label": "x", "probs": [1.0]},
     [{"label": 5, "probs": [1.0]}, {"label": "x", "probs": 5}, {"label": "x"}]),
]


def items():
    for kind, prompts, good, bad in ITEMS:
        request = asked(*prompts, kind=kind, streamed=False)
        for spoilt in bad:
            one = written({"data": [good | {"index": 1}, spoilt | {"index": 0}]})
            yield Case(f"An item of {kind.value} that cannot be read fails alone: {spoilt}", request, one, {1: {}},
                       fault("REFUSED", final=True))
            both = written({"data": [spoilt | {"index": 1}, spoilt | {"index": 0}]})
            yield Case(f"A reply of {kind.value} of which nothing can be read is at fault itself: {spoilt}", request,
                       both, {}, "MAYBE_PROCESSED")
    for name, reply in (("sglang", {"tokens": [[5], ["x"]]}), ("sglang", {"tokens": [[5], None]}),
                        ("tei", [[{"id": 5}], [{"no": 5}]]), ("tei", [[{"id": 5}], 7])):
        yield Case(f"A text whose tokens cannot be read fails alone, from {name}: {reply}",
                   asked("a", "b", kind=Kind.TOKENS, dialect=name, streamed=False),
                   written(reply), {0: {"ids": [5]}}, "REFUSED")


CASES = [*SGLANG, *sglang_streams(), *tgi(), *LLAMACPP, *llamacpp_spoilt(), *items()]
