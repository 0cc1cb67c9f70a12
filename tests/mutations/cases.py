"""What is mutated: the replies that real servers gave, and those of the embedded server in every guise.

A case says which calls of a client bring a reply of this form: how many, of which kind and with which parameters. What real servers answered is
in ``tests/wire``; the embedded server is asked anew each time. Whatever else the client asks for is answered by the embedded server.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tests.mutations.answers import items_in, texts_in

__all__ = ["DONE", "Case", "all_cases", "parse_body"]

_WIRE = Path(__file__).parent.parent / "wire"
DONE = "[DONE]"
_PLAIN, _STREAMED = 4, 6
"""``max_tokens``: a client asks for up to 4 tokens plainly, and streams the rest."""


@dataclass(frozen=True)
class Case:
    """One form of reply, and the calls that bring it.

    Args:
        name: of the file or guise.
        dialect: what the client speaks.
        guise: who answers everything else.
        kind: of the calls: ``complete``, ``chat``, ``stream`` or ``stream_chat`` (handed out piece by piece), ``drop_in`` (a completion whose caller
            has the server's own reply), ``embed``, ``score``, ``classify``.
        size: how many calls share the request.
        params: of each call.
        streamed: whether the reply is a stream.
        content_type: of the reply.
        body: what a real server answered; empty: the guise is asked.
    """

    name: str
    dialect: str | None
    guise: str
    kind: str
    size: int
    params: dict
    streamed: bool
    content_type: str = ""
    body: str = ""

    @property
    def n(self):
        return self.params.get("n", 1)

    @property
    def to_caller(self):
        """Whether its pieces are handed out as they come: what was taken cannot be sent again."""
        return self.kind.startswith("stream")

    @property
    def model(self):
        return "tgi" if self.guise == "tgi" else "tiny"


def parse_body(body, *, streamed):
    """A body's JSON values; ``DONE`` among them is the word that ends a stream."""
    if not streamed:
        return [json.loads(body)]
    payloads = [event.removeprefix("data: ") for event in body.split("\n\n") if event.startswith("data: ")]
    return [DONE if payload == DONE else json.loads(payload) for payload in payloads]


@cache
def all_cases():
    return (*_recorded(), *_simulated())


# Real servers --------------------------------------------------------------------------------------------------------

_KINDS = {
    "/v1/completions": "complete",
    "/completion": "complete",
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/embeddings": "embed",
}
_GUISES = {"vllm": "vllm", "llamacpp": "llamacpp", "transformers": "openai", "litellm": "openai"}


def _dialects(server, path):
    """The languages in which a client would bring a server to answer on a path."""
    if path == "/completion":
        return ("llamacpp",)
    if path.endswith("/batch"):
        return ("vllm", None)
    return ("vllm", None, "openai") if server == "vllm" else ("openai", None)


def _recorded():
    for server in sorted(_GUISES):
        for file in sorted((_WIRE / server).glob("*.json")):
            if file.stem.startswith(("error_", "fault_")):
                continue
            record = json.loads(file.read_text("utf-8"))
            for dialect in _dialects(server, record["request"]["path"]):
                case = _case_of(f"{server}/{file.stem}", record, dialect, _GUISES[server])
                if case is not None:
                    yield from _ways_to_ask(case)


def _case_of(name, record, dialect, guise):
    """The case of a recorded exchange; ``None``: no client of ours brings such a reply, or it answers nothing."""
    request, sent = record["request"], record["request"].get("json")
    kind = _KINDS.get(request["path"])
    if kind is None or record["status"] != 200 or not isinstance(sent, dict) or sent.get("echo"):
        return None
    asked = sent.get("prompt", sent.get("input", sent.get("messages")))
    one = kind == "chat" and not request["path"].endswith("/batch")
    size = 1 if one or not isinstance(asked, list) or isinstance(asked[0], int) else len(asked)
    content_type = record["headers"]["content-type"]
    streamed = content_type.startswith("text/event-stream")
    params = {name: sent[name] for name in ("n", "logprobs", "top_logprobs") if name in sent}
    if "n_probs" in sent:
        params["logprobs"] = sent["n_probs"]
    if kind == "complete" and (sent.get("return_token_ids") or sent.get("return_tokens")):
        params["return_token_ids"] = True
    if kind != "embed":
        params["max_tokens"] = max(_STREAMED, sent.get("max_tokens", 0)) if streamed else _PLAIN
    found = Case(name, dialect, guise, kind, size, params, streamed, content_type, record["body_text"])
    events = parse_body(found.body, streamed=streamed)
    indices = {index for event in events for index, item in items_in(event)}
    whole = all(_is_answered(events, index, streamed=streamed) for index in indices)
    return found if indices == set(range(size * found.n)) and whole else None


def _is_answered(events, index, *, streamed):
    """Whether a choice has an answer, and says that it is over: LiteLLM's proxy forgets to say it of a stream's second choice."""
    own = [item for event in events for each, item in items_in(event) if each == index]
    ends = not streamed or any(item.get("finish_reason") or item.get("stop") for item in own)
    return ends and any("embedding" in item or any(holder[name] for holder, name in texts_in(item)) for item in own)


# The embedded server -------------------------------------------------------------------------------------------------

_GENERATING = ("vllm", "sglang", "tgi", "llamacpp", "trtllm", "openai", "transformers")
_EMBEDDING = ("vllm", "sglang", "llamacpp", "openai", "tei")
_SCORING = ("vllm", "sglang", "llamacpp", "tei")


def _simulated():
    for guise in _GENERATING:
        dialect = "openai" if guise == "transformers" else guise
        for streamed in (False, True):
            params = {"max_tokens": _STREAMED if streamed else _PLAIN}
            ways = [("complete", 1, {})]
            if guise != "transformers":
                ways += [("complete", 4, {}), ("chat", 1, {})]
            if guise not in ("tgi", "transformers"):
                ways += [("complete", 3, {"n": 2}), ("complete", 2, {"logprobs": 2})]
            if guise == "vllm" and not streamed:
                ways.append(("chat", 3, {}))
            for kind, size, more in ways:
                case = Case(f"simulated {guise}", dialect, guise, kind, size, params | more, streamed)
                yield from _ways_to_ask(case)
    for guise in _EMBEDDING:
        for size in (1, 4):
            yield Case(f"simulated {guise}", guise, guise, "embed", size, {}, streamed=False)
    for guise in _SCORING:
        yield Case(f"simulated {guise}", guise, guise, "score", 4, {}, streamed=False)
    yield Case("simulated vllm", "vllm", "vllm", "classify", 4, {}, streamed=False)


def _ways_to_ask(case):
    """The case, the same for a caller who takes the answer piece by piece, and for one who has the server's own reply of it.

    What is handed on as it came, as a lone drop-in call's is, is its caller's to judge.
    """
    yield case
    if case.streamed and case.size == 1 and case.n == 1:
        yield replace(case, kind={"complete": "stream", "chat": "stream_chat"}[case.kind])
    if case.size > 1 and case.kind == "complete":
        yield replace(case, kind="drop_in")
