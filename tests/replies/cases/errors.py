"""Errors within a reply of status 200, wherever they stand."""

from tests.replies.harness import *

# fmt: off
P, PLAIN = asked("p"), asked("p", streamed=False)
PROMPT, KEY = "the patient John Smith has", "sk-very-secret-1"
ECHO = {"error": {"message": f"key {KEY} may not say {PROMPT!r}", "code": 400}}
CLEAN = fault("BAD_CALL", message="400: key [key] may not say '[prompt]'")
FULL = b'event: error\ndata: {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}\n\n'
NO_ERROR = {"detail": "cached", "errors": [1], "msg": "ok", "code": 422}
SINGLE = [
    Case("An error where a plain answer was expected is a failure", PLAIN,
         written({"error": {"message": "boom", "code": 500}}), {},
         fault("MAYBE_PROCESSED", "ServerFault", message="500: boom")),
    Case("An error event holds neither prompt nor key", asked(PROMPT, keys=(KEY,)), stream(ECHO), {}, CLEAN),
    Case("An error in a plain reply holds neither prompt nor key", asked(PROMPT, keys=(KEY,), streamed=False),
         written(ECHO), {}, CLEAN),
    Case("An error event may say that memory ran out, for a call alone", P, FULL, {},
         fault("REJECTED", out_of_memory=True)),
    Case("An error event may say that memory ran out, for a list", asked("p", "q"), FULL, {},
         fault("LIST_TOO_LONG", out_of_memory=True)),
    Case("A type of error may say that the server is full", P,
         stream({"error": {"type": "overloaded_error", "message": "Overloaded"}}), {},
         fault("REJECTED", "ServerFault", out_of_memory=False)),
    Case("Code 529 of an error says that the server is full", P,
         stream({"error": {"code": 529, "message": "All workers are busy"}}), {},
         fault("REJECTED", "ServerFault", out_of_memory=False)),
    Case("Fields of other names are no errors beside a plain answer", PLAIN, written(piece("a", "stop") | NO_ERROR),
         {0: "a"}),
    Case("Fields of other names are no errors beside a streamed answer", P,
         stream(piece("a"), {"msg": "ping"}, piece("b", "stop") | {"detail": "x"}), {0: "ab"}),
]
TOLD = [
    {"error": {"message": "no", "http_status_code": 422}}, {"error": "no", "code": "422"},
    {"detail": {"message": "no", "status": 422}},
    {"detail": [{"loc": [], "msg": "no"}], "status_code": 422}, {"errors": [{"msg": "no", "code": 422}]},
    {"msg": "no", "code": 422},
    [{"error": {"message": "no", "code": 422}}], {"object": "error", "message": "no", "code": 422},
]
EVENTS = [b'event: error\ndata: {"message": "no", "status": 422}\n\n', b'error: {"message": "no", "code": 422}\n\n',
          *TOLD]
# Dynamo has the words in a comment.
UNTOLD = [(b"data: out of luck", "out of luck"), (b": Failed to load image", "Failed to load image"),
          (b"id: 1", "the server told no more")]


def errors():
    for name in ("vllm", "openai", "tgi"):
        told = fault("BAD_CALL", message="422: no")
        for body in TOLD:
            yield Case(f"An error's words and status are told wherever they stand, plain from {name}: {body}",
                       asked("p", streamed=False, dialect=name), written(body), {}, told)
        for each in EVENTS:
            yield Case(f"An error's words and status are told wherever they stand, in a stream from {name}: {each}",
                       asked("p", dialect=name), stream(piece("a"), each), {}, told)
        for line, words in UNTOLD:
            yield Case(f"An error event says {words!r}, from {name}", asked("p", dialect=name),
                       b"event: error\n" + line + b"\n\n", {},
                       fault("MAYBE_PROCESSED", "ServerFault", message=f"500: {words}"))
    for error, kind in [
        ({"message": "x", "code": 400}, "BAD_CALL"), ({"message": "x", "code": 500}, "MAYBE_PROCESSED"),
        ({"message": "x", "code": 503}, "REJECTED"),
        ({"message": "x", "code": "internal"}, "MAYBE_PROCESSED"), ({"message": "x", "code": True}, "MAYBE_PROCESSED"),
        ({"message": "x", "code": 200}, "MAYBE_PROCESSED"), ({}, "MAYBE_PROCESSED"), ("a text", "MAYBE_PROCESSED"),
        (5, "MAYBE_PROCESSED"),
    ]:
        yield Case(f"An error in mid-stream keeps what was finished before, and is what its code says: {error}",
                   asked("p", "q"),
                   stream(piece("a", "stop"), piece("b", None, 1), {"error": error}, piece("c", "stop", 1)), {0: "a"},
                   kind)
    for error in (None, {}, "", False):
        yield Case(f"An empty error beside a streamed answer is none: {error!r}", P,
                   stream(piece("a", "stop") | {"error": error}), {0: "a"})
        yield Case(f"An empty error beside a plain answer is none: {error!r}", PLAIN, plain(choice(0), error=error),
                   {0: "t"})


CASES = [*SINGLE, *errors()]
