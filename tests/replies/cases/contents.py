"""What an answer holds: usages, logprobs, tokens, other fields, messages, characters in halves."""

from tests.replies.harness import *

# fmt: off
P, PQ = asked("p"), asked("p", "q")


# Usages --------------------------------------------------------------------------------------------------------------


def usages():
    guessed = [Usage(1, 1, True, True), Usage(1, 2, True, True)]
    sums = stream(piece("t", usage=tokens(9, 1)), piece("t", None, 1, tokens(9, 2)),
                  piece("u", "stop", 0, tokens(9, 5)), piece("u", "stop", 1, tokens(9, 8)))
    yield Case("A running sum beside the choices is given to nobody", asked("a", "b", dialect=None, max_tokens=50),
               sums,
               {0: {"usage": guessed[1]}, 1: {"usage": guessed[1]}})
    yield Case("More tokens than were asked for are no usage of one choice", asked("a", "b", max_tokens=5),
               stream(piece("t", "stop", 0, tokens(3, 6)), piece("t", "stop", 1, tokens(3, 5))),
               {0: {"usage": guessed[0]}, 1: {"usage": Usage(3, 5)}})
    for name in ("openai", "trtllm", "tgi", None):
        yield Case(f"A plain list's sum is shared out, from {name}",
                   asked("a", "b", dialect=name, streamed=False, max_tokens=20),
                   plain(choice(0), choice(1, "three times as long"), usage=tokens(9, 9)),
                   {0: {"usage": Usage(5, 1, True, True)}, 1: {"usage": Usage(4, 8, True, True)}})
    for name in ("openai", "trtllm"):
        late = stream(piece("", index=1), piece("t"), piece(" u", "stop", 0, tokens(9, 2)),
                      piece("a longer text in one event", "stop", 1),
                      event(usage=tokens(3, 1)), event(usage=tokens(4, 1)))
        yield Case(f"A streamed list's sum comes too late for its answers, from {name}",
                   asked("a", "b", dialect=name, max_tokens=20), late,
                   {0: {"usage": guessed[1]}, 1: {"usage": Usage(1, 7, True, True)}})
    for cached, read in ((3, 3), (0, 0), (9, None), (-1, None), (True, None), ("3", None), (None, None)):
        told = {**tokens(4, 2), "prompt_tokens_details": None if cached is None else {"cached_tokens": cached}}
        yield Case(f"Cached tokens are those of a call alone: {cached!r}, plain", asked("p", streamed=False),
                   plain(choice(0), usage=told), {0: {"usage": Usage(4, 2, cached_tokens=read)}})
        yield Case(f"Cached tokens are those of a call alone: {cached!r}, in a stream", P,
                   stream(piece("t", "stop", usage=told)), {0: {"usage": Usage(4, 2, cached_tokens=read)}})
        yield Case(f"Cached tokens are those of a call alone: {cached!r}, not of a list", asked("p", "q", streamed=False),
                   plain(choice(0), choice(1), usage=told), {0: {"usage": Usage(2, 1, True)}, 1: {"usage": Usage(2, 1, True)}})
    for told in (None, 5, [], {}, {"prompt_tokens": 1}, tokens(-1, 1), tokens("1", 1), tokens(True, 1)):
        yield Case(f"The usage {told} makes no sense and is none, in a stream", P,
                   stream(piece("t", "stop", usage=told)), {0: {"text": "t", "usage": None}})
        yield Case(f"The usage {told} makes no sense and is none, plain", asked("p", streamed=False),
                   plain(choice(0), usage=told), {0: {"text": "t", "usage": None}})
    for prompts, n, usage in (("a", 1, Usage(3, 4)), ("ab", 1, None), ("a", 2, None)):
        choices = [choice(index) for index in range(len(prompts) * n)]
        yield Case(f"llama.cpp's usage is the first prompt's, and handed out where it is the call's: {prompts} n={n}",
                   asked(*prompts, dialect="llamacpp", streamed=False, n=n, no_such=1),
                   plain(*choices, usage=tokens(3, 4)),
                   {place: {"usage": usage} for place in range(len(prompts))})
    for odd in (5, [], "much", tokens("x", 1), [1], True):
        listed = [choice(0, token_ids=odd, prompt_token_ids=odd, usage=odd),
                  choice(1, token_ids=[1], prompt_token_ids=[1, 2])]
        yield Case(f"Ids that only count cost no answer: {odd}", asked("p", "q", streamed=False),
                   plain(*listed, usage=odd), {0: "t", 1: {"text": "t", "usage": Usage(2, 1)}})
        yield Case(f"A count costs no streamed reply that is handed on: {odd}", asked("p", verbatim=True),
                   stream(piece("a", token_ids=odd),
                          piece("b", "stop")), {0: "ab"})
        yield Case(f"A usage that only counts costs a stream no answer: {odd}", PQ,
                   stream(*[event(each, usage=odd) for each in listed]), {0: "t", 1: "t"})
        native = [{"content": "t", "stop": True, "stop_type": "eos", "index": index, "tokens_predicted": odd}
                  for index in (0, 1)]
        yield Case(f"A count costs no answer of llama.cpp's: {odd}",
                   asked("p", "q", dialect="llamacpp", streamed=False), written(native), {0: "t", 1: "t"})
        items = [{"index": index, "text": "t",
                  "meta_info": {"completion_tokens": odd, "finish_reason": {"type": "stop"}}} for index in (0, 1)]
        yield Case(f"A count costs no answer of SGLang's: {odd}", asked("p", "q", dialect="sglang", streamed=False),
                   written(items), {0: "t", 1: "t"})
        yield Case(f"A count costs no stream of SGLang's: {odd}", asked("p", "q", dialect="sglang"), stream(*items),
                   {0: "t", 1: "t"})


# What is joined, and what is handed through --------------------------------------------------------------------------

LOGPROBS = [
    {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}, None,
    {"tokens": ["b", "c"], "token_logprobs": [-2.0, -3.0], "top_logprobs": [{}, {}], "text_offset": [1, 2]},
]
ALL_LOGPROBS = {"tokens": ["a", "b", "c"], "token_logprobs": [-1.0, -2.0, -3.0], "top_logprobs": [{"a": -1.0}, {}, {}],
                "text_offset": [0, 1, 2]}
REASONED = [piece("a", reasoning_content="x", stop_reason=""), piece("b", "stop", reasoning_content="y", stop_reason=3)]
HELD_IDS = stream(piece("a", token_ids=[1]), piece("b", "stop", token_ids=[2, 3]))
FIELDS = [
    Case("Logprobs are joined over all events", P,
         stream(*[piece(text, reason, logprobs=each) for text, reason,
                  each in zip(("a", "", "bc"), (None, None, "stop"), LOGPROBS, strict=True)]),
         {0: {"choice.logprobs": ALL_LOGPROBS}}),
    Case("Logprobs that begin late are kept", P,
         stream(piece("a", logprobs={"tokens": ["a"], "x": None}),
                piece("b", "stop", logprobs={"tokens": ["b"], "x": [1]})),
         {0: {"choice.logprobs": {"tokens": ["a", "b"], "x": [1]}}}),
    Case("Token ids that were asked for are joined", asked("p", return_token_ids=True), HELD_IDS,
         {0: {"choice.token_ids": (1, 2, 3)}}),
    Case("Token ids that were not asked for are not handed out", P, HELD_IDS, {0: {"choice.token_ids": None}}),
    Case("Other fields of reply and choice are handed through, without nulls", asked("p", streamed=False),
         plain(choice(0, stop_reason="e", new=None), model="m", created=5, gone=None),
         {0: {"extra": {"id": "1", "model": "m", "created": 5}, "choice.extra": {"stop_reason": "e"}}}),
    Case("Reasoning beside a completion is joined", P, stream(*REASONED),
         {0: {"choice.extra": {"reasoning_content": "xy", "stop_reason": 3}}}),
    Case("Reasoning is joined in a reply that is handed on", asked("p", "q", verbatim=True),
         stream(*REASONED, piece("c", "stop", 1)),
         {0: {"reply.body.choices.0.text": "ab", "reply.body.choices.0.reasoning_content": "xy",
              "reply.body.choices.0.stop_reason": 3}, 1: "c"}),
    Case("llama.cpp's logprobs, in chats' form, are written as completions have them",
         asked("p", dialect="llamacpp", streamed=False, no_such=1, logprobs=1),
         plain(choice(0, "one", logprobs={"content": [
             {"token": token, "logprob": -0.5,
              "top_logprobs": [{"token": token, "logprob": -0.5}, {"token": "x", "logprob": -2}]} for token in ("on",
                                                                                                                "e")
         ]})),
         {0: {"choice.logprobs": {"tokens": ["on", "e"], "token_logprobs": [-0.5, -0.5],
                                  "top_logprobs": [{"on": -0.5}, {"e": -0.5}], "text_offset": [0, 2]}}}),
]

# Messages ------------------------------------------------------------------------------------------------------------

CALLS = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "ab"]
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
PARTS = [THINKING, {"type": "text", "text": "one"}, {"type": "reference", "reference_ids": [1]},
         {"type": "text", "text": " two"}]


def says(**fields):
    return {0: {"message": {"role": "assistant", "content": None} | fields}}


MESSAGES = [
    Case("Reasoning keeps its older name, and an empty content is none", chats(),
         stream(delta(role="assistant", content=""), delta(reasoning_content="hm"), delta("length")),
         {0: says(reasoning_content="hm")[0] | {"text": ""}}),
    Case("A plain message is as the server sent it, without its nulls", chats(streamed=False),
         plain(message(role="assistant", content=None, refusal=None, tool_calls=CALLS, reasoning="so")),
         says(tool_calls=CALLS, reasoning="so")),
    Case("No tool calls in a plain message are none", chats(streamed=False),
         plain(message(role="assistant", content="hi", tool_calls=[])), says(content="hi")),
    Case("A content in parts has the text of its parts, and is kept", chats(2, streamed=False),
         plain(message(content=PARTS), message(1, content="plain")),
         {0: {"text": "one two", "message": {"content": PARTS}}, 1: "plain"}),
    Case("A content that comes in pieces of parts is joined", chats(to_caller=True),
         stream(delta(role="assistant", content=""), delta(content=[THINKING]),
                delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": " So"}]}]),
                delta(content=[{"type": "text", "text": "one"}]), delta(content=" two"), delta("stop", content=None)),
         {0: {"text": "one two", "message.content": [
             {"type": "thinking", "thinking": [{"type": "text", "text": "Hm. So"}]},
             {"type": "text", "text": "one two"},
         ]}}),
]

# Half a character, which is no Unicode -------------------------------------------------------------------------------

HIGH, LOW, SMILE, UNREAD = "\ud83d", "\ude00", "\U0001f600", "\ufffd"


def halves():
    three = [choice(0, f"a{HIGH}b"), choice(1), choice(2, HIGH + LOW, x={LOW: [LOW]})]
    yield Case("Half a character is read as a sign that can be written", asked("p", "q", "r", streamed=False),
               plain(*three, id=HIGH),
               {0: {"text": f"a{UNREAD}b", "extra": {"id": UNREAD}}, 1: "t",
                2: {"text": SMILE, "choice.extra": {"x": {UNREAD: [UNREAD]}}}})
    yield Case("Half a character can be written in a reply that is handed on",
               asked("p", streamed=False, verbatim=True), plain(choice(0, f"a{HIGH}")),
               {0: {"reply.body": {"id": "1", "choices": [choice(0, f"a{UNREAD}")]}}})
    for pieces, text in [
        ((f"a{HIGH}", f"{LOW}b", ""), f"a{SMILE}b"), ((f"a{HIGH}", "", f"{LOW}b"), f"a{SMILE}b"),
        ((f"a{HIGH}", "b", ""), f"a{UNREAD}b"),
        ((f"a{LOW}", f"{HIGH}b", ""), f"a{UNREAD}{UNREAD}b"), (("a", HIGH + HIGH, LOW), f"a{UNREAD}{SMILE}"),
        (("a", "b", HIGH), f"ab{UNREAD}"),
        (("a", f"b{HIGH}", ""), f"ab{UNREAD}"), (("a", f"b{HIGH}", None), f"ab{UNREAD}"),
    ]:
        reasons = (None, None, "stop")
        mixed = [each for said, reason in zip(pieces, reasons, strict=True)
                 for each in (piece(said, reason), piece(f"x{HIGH}", reason, 1))]
        yield Case(f"Halves in two pieces are joined: {pieces!a}", PQ, stream(*mixed), {0: text, 1: f"x{UNREAD}" * 3})
        for field in ("content", "reasoning"):
            deltas = [delta(reason, **{field: said}) for said, reason in zip(pieces, reasons, strict=True)]
            yield Case(f"Halves in two pieces of {field} are joined: {pieces!a}", chats(), stream(*deltas),
                       says(**{field: text}))
        deltas = [delta(reason, tool_calls=[{"index": 0, "function": {"arguments": said}}]) for said,
                  reason in zip(pieces, reasons, strict=True)]
        yield Case(f"Halves in two pieces of a tool call are joined: {pieces!a}", chats(), stream(*deltas),
                   says(tool_calls=[{"function": {"arguments": text}}]))
    yield Case("Half a character can be written where it is the reason to finish", P, stream(piece("a", HIGH)),
               {0: {"choice.finish_reason": UNREAD}})
    call = {"id": "a", "function": {"name": "f", "arguments": f"x{HIGH}"}}
    yield Case("Half a character at the end of a tool call is not lost", chats(),
               stream(delta(tool_calls=[call | {"index": 1}]), delta("tool_calls")),
               says(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": f"x{UNREAD}"}}]))
    error = {"error": {"message": f"no{HIGH}"}}
    told = fault("MAYBE_PROCESSED", message=f"500: no{UNREAD}")
    yield Case("An error's words can be written, in a stream", P, stream(error), {}, told)
    yield Case("An error's words can be written, plain", asked("p", streamed=False), written(error), {}, told)


CASES = [*usages(), *FIELDS, *MESSAGES, *halves()]
