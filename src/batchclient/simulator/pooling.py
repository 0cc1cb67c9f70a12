"""Embeddings, scores, ranks, classes and tokens, as vLLM 0.32's pooling runner answers; other
guises are made of the same parts.

Rules:
- A pooled prompt goes through the engine as a sequence of one output token. A server's cost is the
  prefill, and a sequence ends in the step that computed its last prompt token. The output token is
  neither counted nor shown.
- A real vLLM serves either generation or pooling. The embedded server serves both, so a test needs
  only one server.
- The answers come from ``vectors``.
- A bad input fails the whole request, and the message does not name the input. Lists have no cap.
- The pages ``/tokenize`` and ``/detokenize`` cost the API server a request, the engine nothing.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pydantic_core

from batchclient.simulator.guise import Served
from batchclient.simulator.text import Generation, Prompt, pieces, token_id
from batchclient.simulator.validation import (
    CompletionCall,
    HttpError,
    Limits,
    bad_request,
    checked_tokens,
    error_body,
    invalid,
    is_ids,
    parse_json,
    problem,
)
from batchclient.simulator.vectors import CLASSES, probabilities_of, score_of, vector_of

__all__ = [
    "ClassWriter",
    "EmbeddingWriter",
    "PoolingCall",
    "RankWriter",
    "ScoreWriter",
    "check_inputs",
    "detokenize_page",
    "parse_embedding",
    "parse_inputs",
    "parse_rerank",
    "parse_score",
    "probabilities_of",
    "score_of",
    "tokenize_page",
    "vector_of",
]

_JSON = (("content-type", "application/json"),)


# Requests ------------------------------------------------------------------------------------------------------------


class PoolingCall(CompletionCall):
    """A checked request for pooled answers.

    Attributes:
        body: the request's fields.
        pairs: the texts of each pair, where pairs are scored; a prompt is then both in a row.
    """

    __slots__ = ("body", "pairs")

    def __init__(
        self, body: dict[str, Any], prompts: list[Prompt], limits: Limits, pairs: list[tuple[str, str]] | None = None
    ) -> None:
        # No field of the body belongs to a generation: ``stream`` means nothing here.
        super().__init__({"temperature": 0}, prompts)
        self.body: dict[str, Any] = body
        self.pairs: list[tuple[str, str]] = pairs or []
        # A prompt may fill the whole context: nothing is generated after it.
        most = limits.max_model_len_tokens
        self.prompt_tokens: list[int] = [checked_tokens(prompt, limits, most) for prompt in prompts]
        self.max_tokens: list[int] = [1] * len(prompts)


def _check_model(fields: dict[str, Any], limits: Limits) -> None:
    model = fields.get("model")
    if model and model != limits.model:
        raise HttpError(404, error_body(f"The model `{model}` does not exist.", "NotFoundError", 404))


def check_inputs(fields: dict[str, Any]) -> list[Prompt]:
    """Read ``input``: a text, token ids, or a list of either; refuse the rest (``HttpError``)."""
    where = "body.input"
    if "input" not in fields:
        raise invalid([problem("missing", where, "Field required", fields)])
    given = fields["input"]
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        not_list = problem("list_type", where, "Input should be a valid list", given)
        raise invalid([not_list, not_list, problem("string_type", where, "Input should be a valid string", given)])
    if given and is_ids(given):
        return [given]
    if all(type(each) is str for each in given) or all(is_ids(each) for each in given):
        return given
    raise invalid(
        [
            problem("string_type", f"{where}.{i}", "Input should be a valid string", each)
            for i, each in enumerate(given)
            if not isinstance(each, str)
        ]
    )


def parse_inputs(body: bytes, limits: Limits) -> PoolingCall:
    """Read and check a body with ``input``, as of ``/classify``; refuse with ``HttpError``."""
    fields = parse_json(body)
    prompts = check_inputs(fields)
    _check_model(fields, limits)
    if not prompts:
        raise bad_request("You must pass at least one prompt")
    return PoolingCall(fields, prompts, limits)


def parse_embedding(body: bytes, limits: Limits) -> PoolingCall:
    """Read and check a body of ``/v1/embeddings``; refuse with vLLM's ``HttpError``."""
    call = parse_inputs(body, limits)
    encoding = call.body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        # vLLM has two more, which are not JSON.
        message = "Input should be 'float' or 'base64'"
        raise invalid([problem("literal_error", "body.encoding_format", message, encoding)])
    if (dimensions := call.body.get("dimensions")) is not None:
        raise bad_request(
            f"Model '{limits.model}' does not support Matryoshka embeddings; dimensions must be unset "
            f"(received dimensions={dimensions})."
        )
    return call


_SCORE_FIELDS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


def parse_score(body: bytes, limits: Limits) -> PoolingCall:
    """Read and check a body of ``/score``: 1 text against 1 or N, or N against N.

    Raises:
        HttpError: with vLLM's status and body.
    """
    fields = parse_json(body)
    names = next((pair for pair in _SCORE_FIELDS if pair[0] in fields and pair[1] in fields), None)
    if names is None:
        lacking = [name for pair in _SCORE_FIELDS for name in pair if name not in fields]
        raise invalid([problem("missing", f"body.{name}", "Field required", fields) for name in lacking])
    first, second = (_texts(fields, name) for name in names)
    _check_model(fields, limits)
    if not first:
        raise bad_request("At least one text element must be given")
    if not second:
        raise bad_request("At least one text_pair element must be given")
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise bad_request("Input lengths must be either 1:1, 1:N or N:N")
    return _pairs_call(fields, list(zip(first, second, strict=True)), limits)


def parse_rerank(body: bytes, limits: Limits, documents: str = "documents") -> PoolingCall:
    """Read and check a body of ``/rerank``; ``documents`` is the field of the documents.

    Raises:
        HttpError: with vLLM's status and body.
    """
    fields = parse_json(body)
    for name in ("query", documents):
        if name not in fields:
            raise invalid([problem("missing", f"body.{name}", "Field required", fields)])
    query = fields["query"]
    if not isinstance(query, str):
        raise invalid([problem("string_type", "body.query", "Input should be a valid string", query)])
    top_n = fields.get("top_n", 0)
    if type(top_n) is not int:
        raise invalid([problem("int_type", "body.top_n", "Input should be a valid integer", top_n)])
    if top_n < 0:
        message = "Input should be greater than or equal to 0"
        raise invalid([problem("greater_than_equal", "body.top_n", message, top_n)])
    texts = _texts(fields, documents)
    _check_model(fields, limits)
    if not texts:
        raise bad_request("At least one text_pair element must be given")
    return _pairs_call(fields, [(query, text) for text in texts], limits)


def _texts(fields: dict[str, Any], name: str) -> list[str]:
    given = fields[name]
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(type(each) is str for each in given):
        return given
    raise invalid([problem("string_type", f"body.{name}", "Input should be a valid string", given)])


def _pairs_call(fields: dict[str, Any], pairs: list[tuple[str, str]], limits: Limits) -> PoolingCall:
    return PoolingCall(fields, [f"{query} {document}" for query, document in pairs], limits, pairs)


# Replies -------------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes a request's reply: an item per input, and the list of items."""

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        assert isinstance(call, PoolingCall)
        self._call = call
        self._created_s = created_s
        self._model = model
        self.reply_id = reply_id

    def choice(self, index: int, generation: Generation) -> str:
        """Return the item of a finished input."""
        del generation
        return _json(self._item(index))

    def _item(self, index: int) -> dict[str, Any]:
        raise NotImplementedError

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        """Return a whole reply; its usage is the total of the list."""
        del completion_tokens
        head = _json({"id": self.reply_id, "object": "list", "created": self._created_s, "model": self._model})
        usage = self._usage() | {"completion_tokens": 0}
        usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        return f'{head[:-1]},"data":[{",".join(choices)}],"usage":{_json(usage)}}}'.encode()

    def _usage(self) -> dict[str, Any]:
        tokens = sum(self._call.prompt_tokens[: len(self._call.prompts)])
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes:
        """Never called: pooled answers are not streamed."""
        raise NotImplementedError

    def usage_event(self, completion_tokens: int) -> bytes:
        """Never called, either."""
        raise NotImplementedError


class EmbeddingWriter(_Writer):
    """``/v1/embeddings``: numbers, or base64 of 32-bit floats, the lowest byte first."""

    def _item(self, index: int) -> dict[str, Any]:
        vector = vector_of(self._call.prompts[index])
        packed = self._call.body.get("encoding_format") == "base64"
        shown: object = b64encode(vector.tobytes()).decode() if packed else vector.tolist()
        return {"index": index, "object": "embedding", "embedding": shown}


class ScoreWriter(_Writer):
    """``/score``."""

    def _item(self, index: int) -> dict[str, Any]:
        return {"index": index, "object": "score", "score": score_of(*self._call.pairs[index])}


class ClassWriter(_Writer):
    """``/classify``."""

    def _item(self, index: int) -> dict[str, Any]:
        probs = probabilities_of(self._call.prompts[index])
        label = CLASSES[probs.index(max(probs))]
        return {"index": index, "label": label, "probs": probs, "num_classes": len(probs)}


class RankWriter(_Writer):
    """``/rerank``: the best ``top_n`` documents, the best first."""

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        super().__init__(call, reply_id, created_s, model)
        self._score_of_item: dict[str, float] = {}

    def choice(self, index: int, generation: Generation) -> str:
        """Return the item of a finished document."""
        item = super().choice(index, generation)
        self._score_of_item[item] = score_of(*self._call.pairs[index])
        return item

    def _item(self, index: int) -> dict[str, Any]:
        query, document = self._call.pairs[index]
        shown = {"text": document, "multi_modal": None}
        return {"index": index, "document": shown, "relevance_score": score_of(query, document)}

    def ranked(self, choices: list[str]) -> list[str]:
        """Return the shown items in order."""
        ranked = sorted(choices, key=self._score_of_item.__getitem__, reverse=True)
        return ranked[: self._call.body.get("top_n") or len(ranked)]

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        """Return a whole reply."""
        del completion_tokens
        head = _json({"id": self.reply_id, "model": self._model, "usage": self._usage()})
        return f'{head[:-1]},"results":[{",".join(self.ranked(choices))}]}}'.encode()


# Tokens --------------------------------------------------------------------------------------------------------------


def tokenize_page(server: Served, body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """Answer ``/tokenize``: a single text; refuse with vLLM's ``HttpError``."""
    fields = parse_json(body)
    prompt = fields.get("prompt")
    if "prompt" not in fields:
        raise invalid([problem("missing", "body.prompt", "Field required", fields)])
    if not isinstance(prompt, str):
        raise invalid([problem("string_type", "body.prompt", "Input should be a valid string", prompt)])
    server.limits.check_model(fields)
    strings = pieces(prompt)
    ids = [token_id(each) for each in strings]
    server.pieces_by_id.update(zip(ids, strings, strict=True))
    shown = strings if fields.get("return_token_strs") else None
    longest = server.limits.max_model_len_tokens
    reply = {"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": shown}
    return 200, _JSON, pydantic_core.to_json(reply)


def detokenize_page(server: Served, body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """Answer ``/detokenize``: ids tokenized here before become their texts, other ids numbers.

    Raises:
        HttpError: with vLLM's status and body.
    """
    fields = parse_json(body)
    tokens = fields.get("tokens")
    if "tokens" not in fields:
        raise invalid([problem("missing", "body.tokens", "Field required", fields)])
    if not is_ids(tokens):
        raise invalid([problem("list_type", "body.tokens", "Input should be a valid list", tokens)])
    server.limits.check_model(fields)
    assert isinstance(tokens, list)
    known = server.pieces_by_id
    text = "".join([known.get(each, f" {each}") for each in tokens])
    return 200, _JSON, pydantic_core.to_json({"prompt": text})


def _json(value: object) -> str:
    return pydantic_core.to_json(value).decode()
