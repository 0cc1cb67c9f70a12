"""Pings, ends of streams, replies in another form than was asked for, and what is no reply at all."""

from tests.replies.harness import *

# fmt: off
PINGS = [
    b"data:\n\n", b"data: \n\n", b": ping\n\n", b"event: ping\ndata: {\"type\": \"ping\"}\n\n", b"data: null\n\n",
    b"data: {}\n\n", b"data: ping\n\n", b"event: ping\ndata: keepalive\n\n", b"data: {\"id\": \"1\"}\n\n",
    b"data: {\"choices\": null}\n\n", b"data: {\"choices\": []}\n\n", b"data: {\"choices\": null, \"error\": null}\n\n",
]
# SGLang and llama.cpp take a field that their own routes lack on OpenAI's.
ON_OPENAIS_ROUTE = {"vllm": {}, "openai": {}, "tgi": {}, "sglang": {"no_such": 1}, "llamacpp": {"no_such": 1}}
SGLANG_BEGAN = {"text": "a", "meta_info": {"id": "x", "completion_tokens": 1, "finish_reason": None}}
SGLANG_ENDED = {"text": "ab", "meta_info": {"id": "x", "completion_tokens": 2, "finish_reason": {"type": "stop"}}}
LLAMACPP_BEGAN = {"index": 0, "content": "a", "stop": False}
LLAMACPP_ENDED = {"index": 0, "content": "b", "stop": True, "stop_type": "eos"}
OWN_ROUTES = {"sglang": (SGLANG_BEGAN, SGLANG_ENDED), "llamacpp": (LLAMACPP_BEGAN, LLAMACPP_ENDED)}


def pings():
    for ping in PINGS:
        around = stream(ping, piece("a"), ping, piece("b", "stop"), ping)
        for name, params in ON_OPENAIS_ROUTE.items():
            yield Case(f"A ping {ping} is skipped, from {name}", asked("p", dialect=name, **params), around, {0: "ab"})
        around = stream(ping, delta(content="a"), ping, delta("stop", content="b"), ping)
        yield Case(f"A ping {ping} is skipped, in a chat", chats(), around, {0: "ab"})
    for ping in ({}, {"id": "1"}, {"choices": None}):
        for name, (began, ended) in OWN_ROUTES.items():
            around = stream(ping, began, ping, ended, ping)
            yield Case(f"A ping {ping} is skipped, on {name}'s own route", asked("p", dialect=name), around, {0: "ab"})


CUT = fault("MAYBE_PROCESSED", "DialectError")
ENDS = [
    Case("A stream without [DONE] is as good",
         asked("p"), stream(piece("a", "stop"), done=False), {0: "a"}),
    Case("A last event without its blank line counts",
         asked("p"), stream(piece("a", "stop"), done=False).rstrip(), {0: "a"}),
    Case("An empty stream was cut off", asked("p"), b"", {}, CUT),
    Case("A stream of pings alone was cut off", asked("p"), b": ping\n\n", {}, CUT),
    Case("A stream that only ends was cut off", asked("p"), stream(), {}, CUT),
    Case("A stream that was cut within a choice is cut, and has no wrong number of choices",
         asked("p", "q"), stream(piece("a", "stop"), piece("b", index=1), done=False), {0: "a"}, CUT),
    Case("A byte-order mark costs a stream no piece",
         asked("p"), b"\xef\xbb\xbf" + stream(piece("a"), piece("b", "stop")), {0: "ab"}),
]

# Another form than the one that was asked for ------------------------------------------------------------------------

WHOLE = plain(choice(0, "ab"), usage=tokens(3, 2))
EVENTS = stream(piece("a"), piece("b", "stop", usage=tokens(3, 2)))
BODIES = {"a stream after a ping": b": ping\n\n" + EVENTS, "a stream of named events": b"event: x\n" + EVENTS}
for blank in (b"", b"\r\n", b" \n", b"\xef\xbb\xbf"):
    BODIES[f"an object after {blank}"] = blank + WHOLE
    if blank != b" \n":
        BODIES[f"a stream after {blank}"] = blank + EVENTS
CHATS = {
    "an object": plain(message(role="assistant", content="ab"), usage=tokens(3, 2)),
    "a stream": stream(delta(role="assistant", content="a"), delta(content="b"), delta("stop", usage=tokens(3, 2))),
}
JOINED_CHAT = {
    "id": "1", "object": "chat.completion", "usage": tokens(3, 2),
    "choices": [message(role="assistant", content="ab") | {"logprobs": None}],
}
TYPES = ["", "text/plain", "text/event-stream", "application/json; charset=utf-8", "Application/JSON"]
NOT_FOUND = {"error": {"message": "no", "code": 404}}


def other_forms():
    for content_type in TYPES:
        for streamed in (True, False):
            where = f"called {content_type!r}, where {'a stream' if streamed else 'an object'} was asked for"
            options = {"streamed": streamed, "content_type": content_type}
            for form, body in BODIES.items():
                # Of a stream alone that comes as one it is known when its first token came.
                is_timed = streamed and form.startswith("a stream") and "json" not in content_type.lower()
                shown = {"text": "ab", "usage": Usage(3, 2), "time_to_first_token_s": 2.0 if is_timed else None}
                yield Case(f"A reply is read as {form}, {where}", asked("p", **options), body, {0: shown})
            for form, body in CHATS.items():
                shown = {"text": "ab", "usage": Usage(3, 2)}
                yield Case(f"A chat is read as {form}, {where}", chats(**options), body, {0: shown})
            for name, (_, ended) in OWN_ROUTES.items():
                for form, body in (("an object", written(ended | {"content": "ab"})),
                                   ("a stream", stream(ended | {"content": "ab"}))):
                    yield Case(f"{name}'s own route is read as {form}, {where}", asked("p", dialect=name, **options),
                               body, {0: "ab"})
            for form, body in (("an object", written(NOT_FOUND)), ("a stream", stream(NOT_FOUND))):
                told = fault("REFUSED", status=404)
                yield Case(f"An error is read as {form}, {where}", asked("p", "q", **options), body, {}, told)
        yield Case(f"A chat's stream called {content_type!r} is handed on as the object that was asked for",
                   chats(streamed=False, verbatim=True, content_type=content_type),
                   CHATS["a stream"], {0: {"reply.body": JOINED_CHAT}})
    # vLLM's route for lists streams each answer's last token alone.
    yield Case("A list of chats is never read as a stream",
               chats(2, streamed=False, content_type="text/event-stream"),
               stream(delta("stop", content="a"), delta("stop", 1, content="b")), {}, CUT)


# What is no reply ----------------------------------------------------------------------------------------------------

NO_ANSWERS = [
    b"", b"{", b"[]", b"null", b"5", b'"x"', b"{}", b'{"choices": null}', b'{"choices": 5}', b'{"choices": [5]}',
    b"\xff",
    b'{"choices": [{}]}', b'{"choices": [{"index": 0}]}', b'{"choices": {"index": 0}}', b"<html>",
    b'{"choices": [null]}',
]


def no_replies():
    bodies = {repr(body): body for body in NO_ANSWERS}
    for depth in (150, 400, 100_000):
        nested = b'"choices":' + b"[" * depth + b"]" * depth + b"}"
        bodies |= {f"{depth} lists deep": b"{" + nested,
                   f"{depth} lists deep beside half a character": b'{"x":"\\ud83d",' + nested}
    malformed = fault("MAYBE_PROCESSED", "DialectError", hides="<html>")
    for name, body in bodies.items():
        yield Case(f"A reply {name} is no answer", asked("p", streamed=False), body, {}, malformed)
        yield Case(f"A chat's reply {name} is no answer", chats(streamed=False), body, {}, malformed)
        yield Case(f"An event {name} is no answer", asked("p"), b"data: " + body + b"\n\n", {}, malformed)
    page, text = b"<html>data: no</html>", b"data: no"
    for how, streamed in (("a stream", True), ("an object", False)):
        yield Case(f"A page in the place of {how} is known as one",
                   asked("p", streamed=streamed, content_type="text/html"),
                   page, {}, fault("MAYBE_PROCESSED", is_page=True, says="text/html"))
        yield Case(f"A text in the place of {how} is no page", asked("p", streamed=streamed, content_type="text/plain"),
                   text, {}, fault("MAYBE_PROCESSED", is_page=False))


CASES = [*pings(), *ENDS, *other_forms(), *no_replies()]
