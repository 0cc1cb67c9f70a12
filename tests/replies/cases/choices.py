"""Which choice is whose: numbers, ends, repetitions, and choices that cannot be read."""

from tests.replies.harness import *

# fmt: off
P, PQ, PQR = asked("p"), asked("p", "q"), asked("p", "q", "r")
THREE = ("p", "q", "r")


# Numbers -------------------------------------------------------------------------------------------------------------


def numbers():
    yield from plain_and_streamed("Choices of several prompts with n go to their prompts, in order", ("p", "q"),
                                  [choice(index, f"t{index}") for index in (3, 0, 2, 1)],
                                  {0: ["t0", "t1"], 1: ["t2", "t3"]}, n=2)
    for first, last in (("1", "0"), (1.0, 0.0)):  # as protobuf and Lua write them
        yield from plain_and_streamed(f"Numbers are read that are written {first!r} and {last!r}", ("p", "q"),
                                      [choice(first, "b"), choice(last, "a")], {0: "a", 1: "b"})
    for indices in [(0, 1), (0, 1, 1), (0, 1, 2, 2), (0, 1, 3), (0, 1, -1), (0, True, 2), (0, 1, 2.5), (0, 1, None),
                    (0, 1, "two"), ()]:
        yield Case(f"A plain reply of three with the numbers {indices} is handed to nobody",
                   asked(*THREE, streamed=False), plain(*map(choice, indices)), {}, fault("MISMATCH", "DemuxError"))
        yield Case(f"A list of chats with the numbers {indices} is handed to nobody",
                   chats(3, streamed=False), plain(*[message(index, content="x") for index in indices]), {},
                   fault("MISMATCH", "DemuxError"))
    for last in (3, -1, True, None, "two", 2.5):
        yield Case(f"A stream of three that goes on with the number {last!r} keeps what was finished before",
                   PQR, stream(piece("a", "stop"), piece("b", "stop", 1), piece("c", "stop", last)), {0: "a", 1: "b"},
                   "MISMATCH")
    yield Case("A long number is not shown whole", asked("p", "q", streamed=False),
               plain(choice(0), choice("x" * 10_000)), {},
               fault("MISMATCH", hides="x" * 100))
    yield Case("Nothing is believed after a wrong number",
               PQR, stream(*[piece("t", "stop", index) for index in (1, 9, 0, 2)]), {1: "t"}, "MISMATCH")
    yield Case("A stream that leaves out a prompt is a mismatch, and says what is missing",
               PQR, stream(piece("a", "stop"), piece("c", "stop", 2)), {0: "a", 2: "c"},
               fault("MISMATCH", message="1 of 3 choices are missing from the reply"))
    for name in ("vllm", "openai", "tgi"):
        for index in (None, LEFT_OUT, "0", 0.0):
            shown = "left out" if index is LEFT_OUT else repr(index)
            options = {"dialect": name, "stop": ["zz"]}
            yield Case(f"A lone choice may have the number {shown}, in a stream from {name}",
                       asked("p", **options), stream(piece("a", index=index), piece("b", "stop", index)), {0: "ab"})
            yield Case(f"A lone choice may have the number {shown}, plain from {name}",
                       asked("p", streamed=False, **options), plain(choice(index)), {0: "t"})
    yield Case("A lone chat's stream needs no number", chats(), stream(delta("stop", LEFT_OUT, content="a")), {0: "a"})
    yield Case("A lone chat needs no number", chats(streamed=False), plain(message(LEFT_OUT, content="a")), {0: "a"})
    yield Case("A lone embedding needs no number",
               asked("p", kind=Kind.EMBEDDING, streamed=False), written({"data": [{"embedding": [1.0]}]}),
               {0: {"vector": [1.0]}})
    yield Case("A lone result of llama.cpp's needs no number",
               asked("p", dialect="llamacpp"),
               stream({"content": "a", "stop": True, "stop_type": "eos", "index": None}), {0: "a"})
    for index in (None, LEFT_OUT, 1, True, [], {}):
        shown = "left out" if index is LEFT_OUT else repr(index)
        both = [choice(index, "a"), choice(index, "b")]
        for prompts in ("p", "pq"):
            yield Case(f"Which is which of two with the number {shown} cannot be known, in a stream for {len(prompts)}",
                       asked(*prompts), stream(event(*both)), {}, "MISMATCH")
            yield Case(f"Which is which of two with the number {shown} cannot be known, plain for {len(prompts)}",
                       asked(*prompts, streamed=False), plain(*both), {}, "MISMATCH")
    for index in (None, LEFT_OUT):
        begun = [choice(index, text, None) for text in "ab"]
        yield Case(f"Two that began without numbers are not told apart later: {'left out' if index else 'null'}",
                   P, stream(event(*begun), event(choice(index, "a"))), {}, "MISMATCH")


# LiteLLM's proxy, 1.108: a streamed list's pieces are all numbered 0, and a chat with n=2 has one end for both.
UNDER_ONE_NUMBER = stream(piece("a"), piece("x"), piece("b"), piece("y"), piece(LEFT_OUT, "stop"),
                          piece(LEFT_OUT, usage=tokens(3, 2)))
ONE_END_FOR_BOTH = stream(piece("A"), piece("B", index=1), piece("", "stop"))
ENDS = [
    Case("The pieces of a list under one number are nobody's answer, and the list goes plain", PQ, UNDER_ONE_NUMBER, {},
         "STREAM_REFUSED"),
    Case("The pieces of two choices under one number are nobody's, and the call goes plain",
         asked("p", n=2), UNDER_ONE_NUMBER, {}, "STREAM_REFUSED"),
    Case("A call whose one choice of two alone has an end goes plain", asked("p", n=2), ONE_END_FOR_BOTH, {},
         "STREAM_REFUSED"),
    Case("A list of which one alone has an end keeps that one, and the rest goes plain", PQ, ONE_END_FOR_BOTH, {0: "A"},
         "STREAM_REFUSED"),
    Case("A choice that goes on after its end in the same read is not handed out",
         PQ, stream(piece("t", "stop", 1), piece("t", None, 1), piece("t", "stop")), {}, "MISMATCH", apart={1: "t"}),
    Case("A choice that comes twice in the same read is not handed out",
         PQR, stream(piece("a", "stop"), piece("b", "stop", 1), piece("b", "stop", 1)), {0: "a"}, "MISMATCH",
         apart={0: "a", 1: "b"}),
    Case("An answer without any text is empty", P, stream(piece(LEFT_OUT, "stop")), {0: ""}),
    Case("An answer whose text is null has another form", P, stream(piece(None, "stop")), {}, "MAYBE_PROCESSED"),
    Case("A message in a completion's place is another form", P, stream(delta("stop", content="a")), {},
         "MAYBE_PROCESSED"),
]


def ends():
    yield from ENDS
    new = {
        "a text with a usage": piece("c", usage=tokens(3, 2)), "its last text": piece("b", "stop"),
        "a text": piece("c"),
        "an abort": piece("", "abort"), "a token": piece("", token_ids=[7]),
        "a token with its last text and a usage": piece("b", "stop", usage=tokens(3, 2), token_ids=[7]),
    }
    for what, more in new.items():
        yield Case(f"A choice that brings {what} after its end is a mismatch", P,
                   stream(piece("a"), piece("b", "stop"), more), {}, "MISMATCH")
    for more in ({"content": "b"}, {"tool_calls": [{"index": 0}]}, {"reasoning": "b"}):
        yield Case(f"A chat that brings {more} after its end is a mismatch",
                   chats(), stream(delta(content="a"), delta("stop"), delta(usage=tokens(3, 2), **more)), {},
                   "MISMATCH")
    for text in ("", None, LEFT_OUT, "b"):
        for reason in (None, "stop"):
            shown = f"text {'left out' if text is LEFT_OUT else repr(text)} and reason {reason}"
            for name in ("vllm", "openai", "tgi"):
                last = piece(text, reason, usage=tokens(3, 2))
                has = {"text": "ab"} | ({"usage": Usage(3, 2)} if name == "openai" else {})
                yield Case(f"A usage that repeats the finished choice with {shown} is a usage, from {name}",
                           asked("p", dialect=name), stream(piece("a"), piece("b", "stop"), last), {0: has})
                last = piece(text, reason, 1, usage=tokens(3, 2))
                yield Case(f"A list's usage that repeats the last choice with {shown} is a usage, from {name}",
                           asked("p", "q", dialect=name), stream(piece("a", "stop"), piece("b", "stop", 1), last),
                           {0: "a", 1: "b"})
    for last in (delta(usage=tokens(3, 2)), delta("stop", usage=tokens(3, 2), role="assistant", content=""),
                 delta(usage=tokens(3, 2), content=None)):
        yield Case(f"A chat's usage that repeats the finished choice is a usage: {last['choices']}",
                   chats(dialect="openai"),
                   stream(delta(role="assistant", content="a"), delta("stop"), last),
                   {0: {"text": "a", "usage": Usage(3, 2)}})
    for name in ("vllm", "openai", "tgi", "sglang", "llamacpp"):
        for text in (None, LEFT_OUT):
            params = {"no_such": 1} if name in ("sglang", "llamacpp") else {"stop": ["bz"]}
            yield Case(f"The last event needs no text, from {name}: {'null' if text is None else 'left out'}",
                       asked("p", dialect=name, **params), stream(piece("ab"), piece(text, "stop")), {0: "ab"})
            for options in ({}, {"stop": ["zz" if name == "tgi" else "az"]}):
                pieces = [piece(text, usage=tokens(3, 1)), piece("bcd", "stop", usage=tokens(3, 4))]
                yield Case(f"A piece without its text is not taken for an empty one, from {name}: "
                           f"{'null' if text is None else 'left out'}, {options}",
                           asked("p", "q", dialect=name, **params | options), stream(piece("x", "stop", 1), *pieces),
                           {1: "x"}, "REFUSED")


# Counts beside the pieces ---------------------------------------------------------------------------------------------


def counted(text, finish_reason, count, index=0):
    return piece(text, finish_reason, index, usage=tokens(2, count))


FIRST, LAST = counted("a", None, 1), counted("b", "stop", 2)
OPENING, HALF, END = (delta(reason, usage=tokens(3, count), content=text)
                      for reason, count, text in ((None, 0, ""), (None, 1, "a"), ("stop", 2, "b")))
COUNTED = [
    Case("A piece that comes twice is known by its count", P, stream(FIRST, FIRST, LAST), {}, "MISMATCH"),
    Case("A piece that comes twice leaves the others their answers",
         PQ, stream(counted("c", "stop", 1, 1), FIRST, FIRST, LAST), {1: "c"}, "MISMATCH"),
    Case("A last piece that comes twice in one read is not handed out", P, stream(FIRST, LAST, LAST), {}, "MISMATCH"),
    Case("A chat's piece that comes twice is known by its count", chats(), stream(OPENING, HALF, HALF, END), {},
         "MISMATCH"),
    Case("A chat's opening may come twice", chats(), stream(OPENING, OPENING, HALF, END), {0: "ab"}),
    Case("What was held back for a stop string may come with the end, and no token", P,
         stream(FIRST, counted("b", "length", 1)), {0: "ab"}),
    Case("Tokens without text may stand before the text",
         P, stream(counted("", None, 1), counted("", None, 1), counted("ab", "stop", 2)), {0: "ab"}),
    Case("An echoed prompt may stand before the first token",
         P, stream(counted("a", None, 0), counted("b", None, 0), counted("", "length", 0)), {0: "ab"}),
    *(Case(f"Pieces of {next(iter(said))} may be alike and count no further token", chats(),
           stream(OPENING, *[delta(usage=tokens(3, 1), **said)] * 2, delta("stop", usage=tokens(3, 2))),
           {0: {"message": {"role": "assistant", "content": None} | whole}})
      for said, whole in (({"reasoning": "ha"}, {"reasoning": "haha"}),
                          ({"tool_calls": [{"index": 0, "function": {"arguments": "0"}}]},
                           {"tool_calls": [{"function": {"arguments": "00"}}]}))),
    Case("A gateway may count nothing truly", P, stream(FIRST, counted("b", None, 1), counted("", "stop", 1)),
         {0: "ab"}),
]

# Choices that cannot be read, or were given up -----------------------------------------------------------------------

ALONE = fault("REFUSED", "DialectError", status=None, final=True, hides="t0")
REPLYS_FAULT = fault("MAYBE_PROCESSED", "DialectError", final=False)
SPOILT = [piece("a", None, 1), piece("b", {"x": 1}, 1), piece("c", None, 1), piece("d", "stop", 1)]
UNREADABLE = [
    Case("Nothing more of a choice that cannot be read is looked at", PQ, stream(*SPOILT, piece("x", "stop")), {0: "x"},
         "REFUSED"),
    Case("A choice that was cut off beside one that cannot be read may be tried again", PQ,
         stream(*SPOILT, piece("x"), done=False), {}, "MAYBE_PROCESSED"),
    Case("A choice that is missing beside one that cannot be read is a mismatch", PQ, stream(*SPOILT), {}, "MISMATCH"),
]


def unreadable():
    yield from UNREADABLE
    for fields in ({"text": None}, {"text": 5}, {"text": ["t"]}, {"finish_reason": {}},
                   {"finish_reason": {"type": "stop"}},
                   {"finish_reason": 5}, {"token_ids": 5}, {"token_ids": [[1], 2], "text": {}}):
        for place in (0, 1, 2):
            choices = [choice(index, f"t{index}", token_ids=[1]) for index in range(3)]
            choices[place] |= fields
            rest = {index: f"t{index}" for index in range(3) if index != place}
            name = f"Choice {place} that cannot be read fails alone, and is not asked for again: {fields}"
            yield from plain_and_streamed(name, THREE, choices, rest, ALONE, return_token_ids=True)
            yield Case(f"{name} (in one event)", asked(*THREE, return_token_ids=True), stream(event(*choices)), rest,
                       ALONE)
    yield from plain_and_streamed("One choice of several that cannot be read fails its prompt", ("p", "q"),
                                  [choice(0), choice(1, 5), choice(2), choice(3)], {1: ["t", "t"]}, "REFUSED", n=2)
    for size in (1, 2):
        yield from plain_and_streamed(f"A reply of {size} of which nothing can be read is at fault itself",
                                      THREE[:size],
                                      [choice(0, 5), choice(1, {})][:size], {}, REPLYS_FAULT | {"once": size == 1})
    for reason in ("abort", "error"):
        given_up = fault("MAYBE_PROCESSED", "ServerFault")
        yield from plain_and_streamed(f"A prompt that ends by {reason} is a fault, and the others are kept", THREE,
                                      [choice(0), choice(1, "trunc", reason), choice(2)], {0: "t", 2: "t"}, given_up)
        yield from plain_and_streamed(f"One choice of several that ends by {reason} fails its prompt", ("p", "q"),
                                      [choice(0), choice(1, "x", reason), choice(2), choice(3)], {1: ["t", "t"]},
                                      given_up, n=2)
        chat = [message(content="x"), message(1, reason, content="x")]
        yield Case(f"A chat of a list that ends by {reason} is a fault", chats(2, streamed=False), plain(*chat),
                   {0: "x"}, given_up)
        for order in ((0, 1, 2), (2, 1, 0)):
            choices = [choice(0), choice(1, "t", reason), choice(2, 5)]
            name = f"What may be tried again wins over what cannot be read: {reason}, in the order {order}"
            yield from plain_and_streamed(name, THREE,
                                          [choices[place] for place in order], {0: "t"}, given_up)
    for bad in (None, {"content": 5}, 5, {"content": [{"type": "text"}]}):
        pair = [message(content="a"), message(1) | {"message": bad}]
        yield Case(f"A chat of a list that cannot be read fails alone: {bad}", chats(2, streamed=False), plain(*pair),
                   {0: "a"}, "REFUSED")
        yield Case(f"A chat that cannot be read is no answer: {bad}", chats(streamed=False),
                   plain(message() | {"message": bad}), {}, REPLYS_FAULT)
    for bad in ({"content": 5}, {"tool_calls": 5}, {"tool_calls": [5]}, {"tool_calls": [{"index": "x"}]},
                {"reasoning": {}},
                {"tool_calls": [{"index": True}]}, {"content": [{"text": "x"}]}, {"content": ["x"]},
                {"content": [{"type": "text", "text": 5}]}, {"content": {"type": "text", "text": "x"}}):
        yield Case(f"A chat with a piece that is none is no answer: {bad}", chats(),
                   stream(delta(**bad), delta("stop")), {}, REPLYS_FAULT)
        yield Case(f"A chat of two choices with a piece that is none is no answer: {bad}", chats(n=2),
                   stream(delta(index=1, content="a"), delta(**bad), delta("stop"), delta("stop", 1)), {},
                   "MAYBE_PROCESSED")
    calls = [{"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]} for arguments in ("{", {})]
    for deltas in (calls, [{"content": "a"}, {"content": {}}]):
        yield Case(f"Pieces of a message that do not go together are no answer: {deltas}", chats(),
                   stream(*[delta(**each) for each in deltas], delta("stop")), {}, REPLYS_FAULT)


CASES = [*numbers(), *ends(), *COUNTED, *unreadable()]
