"""The one door to the dialects, and the words in which the tables of this folder are written.

A table says what was asked, which bytes came, and what is made of them. Of the package it is known here
only that a dialect encodes a batch, decodes its reply and judges an error reply.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.core import Batch, Failure, Kind, Request, RequestState
from batchclient.dialects import make_dialect
from batchclient.dialects._shapes import Shapes
from batchclient.errors import ConfigError
from batchclient.types import Usage
from tests.params import as_given

WIRE = Path(__file__).parent.parent / "wire"
SENT_AT, READ_AT = 10.0, 12.0
LEFT_OUT = object()
"""A field with this value is not in the reply."""


# What was asked ------------------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """One request: with which inputs, of which kind, in which language, with which parameters."""

    prompts: tuple
    kind: Kind = Kind.COMPLETION
    dialect: str | None = "vllm"
    streamed: bool = True
    content_type: str = ""
    keys: tuple[str, ...] = ()
    solo: bytes = b""
    priority: int | None = None
    model: str = "tiny"
    to_caller: bool = False
    verbatim: bool = False
    params: dict = field(default_factory=dict)

    def server(self):
        """A dialect that knows nothing yet."""
        return make_dialect(self.dialect, self.keys)

    def batch(self):
        """A batch of one request for each input, sent at ``SENT_AT``."""
        token_ids = self.kind is Kind.COMPLETION and isinstance(self.prompts[0], list)
        common = {"token_ids": token_ids, "to_caller": self.to_caller, "verbatim": self.verbatim}
        shape = shape_of(self.kind, as_given(self.params, self.kind), self.model, **common)
        if self.priority is not None:
            shape = replace(shape, priority=self.priority, tells_priority=True)
        return batch_of(shape, *self.prompts, streamed=self.streamed, solo_fields=self.solo)


_OF_ASKED = Asked.__dataclass_fields__.keys() - {"params"}


def asked(*prompts, **options):
    """What the options do not say of the request is a parameter of the calls."""
    about = {name: options.pop(name) for name in _OF_ASKED & options.keys()}
    return Asked(prompts, **about, params=options)


def user(text):
    return [{"role": "user", "content": text}]


def chats(size=1, **options):
    return asked(*[user("hi")] * size, kind=Kind.CHAT, **options)


def shape_of(kind, params, model="tiny", **options):
    return Shapes().shape(params, model, kind=kind, **options)[0]


def batch_of(shape, *prompts, streamed=False, **fields):
    requests = []
    for prompt in prompts:
        written = json.dumps(prompt, ensure_ascii=False, separators=(",", ":")).encode()
        request = Request(shape, written, **fields)
        request.state, request.attempts = RequestState.IN_FLIGHT, 1
        requests.append(request)
    size = len(requests)
    told = (SENT_AT, None, size, size)
    return Batch(1, 0, shape, requests, streamed, 0, *told, answered=bytearray(size))


def sent(request, server=None):
    """The path and the body of what is sent; no name may be in it twice. Or the failure, if nothing is sent."""
    batch, server = request.batch(), server or request.server()
    if batch.shape.thinking_tokens is not None:
        batch = server.asked(batch)
    wire = batch if isinstance(batch, Failure) else server.encode(batch)
    if isinstance(wire, Failure):
        return wire

    def once(pairs):
        assert len({name for name, _ in pairs}) == len(pairs), "a name is sent twice"
        return dict(pairs)

    assert wire.method == "POST"
    return ("" if wire.from_root else "/v1") + wire.path, json.loads(wire.body, object_pairs_hook=once)


def refused(request, status, body, headers=None, wall_time=0.0, server=None):
    """What a server means with an error reply."""
    batch, server = request.batch(), server or request.server()
    if batch.shape.thinking_tokens is not None:
        batch = server.asked(batch)
    server.encode(batch)
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    failure = server.failure(batch, status, headers or {}, body, wall_time)
    return failure if batch.shape.thinking_tokens is None else server.refused_budget(batch, failure, 0.0)


# What came -----------------------------------------------------------------------------------------------------------


def fields_of(**fields):
    return {name: value for name, value in fields.items() if value is not LEFT_OUT}


def choice(index, text="t", finish_reason="stop", **fields):
    return fields_of(index=index, text=text, finish_reason=finish_reason, **fields)


def event(*choices, usage=LEFT_OUT, **fields):
    return fields_of(**{"id": "1", "choices": list(choices), "usage": usage} | fields)


def piece(text, finish_reason=None, index=0, usage=LEFT_OUT, **fields):
    """An event with a piece of a completion."""
    return event(choice(index, text, finish_reason, **fields), usage=usage)


def delta(finish_reason=None, index=0, usage=LEFT_OUT, **fields):
    """An event with a piece of a message."""
    said = fields_of(index=index, delta=fields, finish_reason=finish_reason)
    return event(said, usage=usage, object="chat.completion.chunk")


def message(index=0, finish_reason="stop", **fields):
    return fields_of(index=index, message=fields, finish_reason=finish_reason)


def tokens(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def stream(*events, done=True):
    """Events as they are sent; bytes are sent as they are."""
    whole = b"".join(each if isinstance(each, bytes) else b"data: " + written(each) + b"\n\n" for each in events)
    return whole + b"data: [DONE]\n\n" * done


def plain(*choices, **fields):
    return written(event(*choices, **fields))


def written(value):
    """JSON in ASCII: half a character is the escape that it is."""
    return json.dumps(value).encode()


# What is made of it --------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of a reply: the answers by position, why the others have none, pieces for a waiting caller."""

    answers: dict
    failure: Failure | None
    deltas: list
    events: int

    @property
    def texts(self):
        return {place: [one.text for one in answer.choices] for place, answer in sorted(self.answers.items())}

    @property
    def usages(self):
        return [answer.usage for _, answer in sorted(self.answers.items())]


def read(request, *chunks, server=None):
    """Have a reply read, in these chunks."""
    batch, server = request.batch(), server or request.server()
    server.encode(batch)
    decoder = server.decoder(batch, request.content_type)
    pairs = [pair for chunk in chunks for pair in decoder.feed(chunk, READ_AT)]
    last, failure = decoder.end(READ_AT)
    pairs += last
    assert len(dict(pairs)) == len(pairs), "nobody is answered twice"
    return Outcome(dict(pairs), failure, list(getattr(decoder, "deltas", ())), decoder.events)


@dataclass
class Case:
    """One reply to one request, and what is made of it.

    Args:
        name: what is promised, a whole sentence.
        asked: the request.
        reply: the bytes, read at once.
        answers: by position: a text, the texts of several choices, or what the answer shows by the path of its
            attributes; ``choice`` is the first of its choices.
        failure: why the others have no answer: a kind of failure, or ``fault(…)``.
        apart: the answers where each line is read alone, if they are others: what was handed out cannot be taken back.
    """

    name: str
    asked: Asked
    reply: bytes
    answers: dict = field(default_factory=dict)
    failure: str | dict | None = None
    apart: dict | None = None


def fault(kind, error=None, **fields):
    """A failure: its kind, its error's name, its fields; ``says`` is a part of its message, ``hides`` is not in it."""
    return {"kind": kind} | ({"error": error} if error else {}) | fields


def like(answer, expected):
    """An answer in the form of what is expected of it."""
    if isinstance(expected, dict):
        return {path: look(answer, path) for path in expected}
    return [one.text for one in answer.choices] if isinstance(expected, list) else look(answer, "text")


def look(answer, path):
    """What stands in an answer at the end of a path."""
    for name in path.split("."):
        if isinstance(answer, (dict, list)):
            answer = answer[int(name) if isinstance(answer, list) else name]
        else:
            answer = answer.choices[0] if name == "choice" else getattr(answer, name)
    return list(answer) if path == "vector" else answer


def failure_like(failure, expected):
    """A failure in the form of what is expected of it."""
    if failure is None or not isinstance(expected, dict):
        return failure and failure.kind.name
    found = {"kind": failure.kind.name, "error": failure.error.__name__}
    found |= {"says": expected.get("says") if expected.get("says", "") in failure.message else failure.message}
    found |= {"hides": failure.message if expected.get("hides", "\0") in failure.message else expected.get("hides")}
    return {name: found[name] if name in found else getattr(failure, name) for name in expected}


def plain_and_streamed(name, prompts, choices, answers=None, failure=None, apart=None, **options):
    """Two cases: the choices in a plain reply, and each in an event of its own."""
    common = {"answers": answers or {}, "failure": failure}
    yield Case(f"{name} (plain)", asked(*prompts, streamed=False, **options), plain(*choices), **common)
    one_by_one = stream(*[event(each) for each in choices])
    yield Case(f"{name} (streamed)", asked(*prompts, **options), one_by_one, **common, apart=apart)


def named(rows, to_name=lambda row: row.name):
    """Rows of a table as parameters of a test, each under its own name."""
    rows = list(rows)
    names = [to_name(row) for row in rows]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
    return [pytest.param(row, id=name) for row, name in zip(rows, names, strict=True)]


# What real servers answered ------------------------------------------------------------------------------------------

_STREAM_FIELDS = ("stream", "stream_interval", "stream_options")
_NATIVE = {"n_predict": "max_tokens", "n_probs": "logprobs", "return_tokens": "return_token_ids"}
_DIALECTS = {"vllm": "vllm", "litellm": "vllm", "llamacpp": "openai", "transformers": "openai"}
_INPUTS = {"/completions": "prompt", "/completion": "prompt", "/chat/completions": "messages"}
_INPUTS |= {"/chat/completions/batch": "messages", "/embeddings": "input"}


class Recording(NamedTuple):
    """One exchange with a real server: what was asked, and the reply."""

    asked: Asked
    status: int
    body: bytes


@cache
def recording(name):
    """The exchange of a file in ``tests/wire``; ``None``: no client of ours asks so."""
    found = json.loads((WIRE / f"{name}.json").read_text("utf-8"))
    path = found["request"]["path"].removeprefix("/v1")
    given = found["request"].get("json")
    if path not in _INPUTS or not isinstance(given, dict):
        return None
    inputs = given.get(_INPUTS[path], "")
    kind = {"messages": Kind.CHAT, "input": Kind.EMBEDDING, "prompt": Kind.COMPLETION}[_INPUTS[path]]
    several = isinstance(inputs, list) and bool(inputs) and not isinstance(inputs[0], int)
    if kind is Kind.CHAT:
        several = path.endswith("/batch")
    left = {name: value for name, value in given.items() if name not in (_INPUTS[path], "model", *_STREAM_FIELDS)}
    request = Asked(
        (tuple(inputs) if several else (inputs,)) or ("x",),
        kind,
        dialect="llamacpp" if path == "/completion" else _DIALECTS[name.split("/")[0]],
        streamed=bool(given.get("stream")),
        content_type=found["headers"].get("content-type", ""),
        model=given.get("model") or "tiny",
        params={_NATIVE.get(name, name): value for name, value in left.items()},
    )
    try:
        request.batch()
    except ConfigError:
        return None
    return Recording(request, found["status"], found["body_text"].encode())


def recordings(*patterns):
    """The names of those that match one of the patterns, without those that are no question of a client's."""
    files = {file for pattern in patterns for file in WIRE.glob(f"{pattern}.json")}
    names = sorted(f"{file.parent.name}/{file.stem}" for file in files)
    return [name for name in names if recording(name) is not None]


def read_recording(name, **changes):
    found = recording(name)
    return read(replace(found.asked, **changes), found.body)
