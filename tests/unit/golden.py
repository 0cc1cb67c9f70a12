"""What a real vLLM answered: the files of ``tests/wire/vllm`` as batches and bytes. See ``capture.py`` there."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.core import Batch, Kind, Request, RequestState
from batchclient.dialects._shapes import Shapes
from tests.params import as_given

_FOLDER = Path(__file__).parent.parent / "wire" / "vllm"
_STREAM_FIELDS = ("stream", "stream_interval", "stream_options")
NAMES = sorted(path.stem for path in _FOLDER.glob("*.json"))


@dataclass(frozen=True)
class Golden:
    """One recorded exchange.

    Args:
        prompts: the request's prompts or conversations, one or several.
        params: its other fields, those of the stream left out.
        streamed: whether it asked for a stream.
        status: of the reply.
        body: the reply's bytes.
    """

    name: str
    prompts: tuple
    params: dict
    streamed: bool
    status: int
    body: bytes
    kind: Kind = Kind.COMPLETION

    def batch(self, shapes=None):
        """A batch that stands for the recorded request, sent at time 10."""
        shapes = shapes or Shapes()
        params = {name: value for name, value in self.params.items() if name != "model"}
        ids = self.kind is Kind.COMPLETION and isinstance(self.prompts[0], list)
        shape, _ = shapes.shape(as_given(params, self.kind), self.params["model"], kind=self.kind, token_ids=ids)
        requests = [make_request(shape, prompt) for prompt in self.prompts]
        return make_batch(shape, requests, streamed=self.streamed)


def make_request(shape, prompt, **fields):
    request = Request(shape, json.dumps(prompt, ensure_ascii=False, separators=(",", ":")).encode(), **fields)
    request.state, request.attempts = RequestState.IN_FLIGHT, 1
    return request


def make_batch(shape, requests, *, streamed):
    size = len(requests)
    return Batch(1, 0, shape, requests, streamed, 0, 10.0, 10.0, None, size, size, answered=bytearray(size))


@cache
def golden(name):
    record = json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
    sent = dict(record["request"].get("json") or {})
    path = record["request"]["path"]
    is_chat = "/chat/" in path
    messages = sent.pop("messages", [])
    prompt = sent.pop("prompt", "")
    several = isinstance(prompt, list) and (not prompt or not isinstance(prompt[0], int))
    streamed = bool(sent.get("stream"))
    params = {field: value for field, value in sent.items() if field not in _STREAM_FIELDS}
    prompts = tuple(prompt) if several else (prompt,)
    if is_chat:
        prompts = tuple(messages) if path.endswith("/batch") else (messages,)
    kind = Kind.CHAT if is_chat else Kind.COMPLETION
    return Golden(name, prompts, params, streamed, record["status"], record["body_text"].encode(), kind)
