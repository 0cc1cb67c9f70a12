"""What several of these guises share: handlers, flat errors, bare ranks, fields of OpenAI's alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from batchclient.simulator.guise import Handler, Reply, ServerView, json_reply, metrics_reply
from batchclient.simulator.replies import RankWriter
from batchclient.simulator.requests import Body, Call, HttpError, Sampling
from batchclient.simulator.text import Prompt, count_tokens

__all__ = [
    "OPENAI_FIELDS",
    "BareRanks",
    "empty",
    "fitted",
    "flat_words",
    "json_handler",
    "metrics_handler",
    "openai_models",
    "plainly",
    "unknown_fields",
]

_OPENAI_FIELDS = (
    "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream"
    " stream_options suffix temperature top_p user"
)
OPENAI_FIELDS = frozenset(_OPENAI_FIELDS.split())
"""OpenAI's fields of ``/v1/completions`` (API reference); ``stream_options``: ``include_usage``."""


def json_handler(make: Callable[[ServerView], object]) -> Handler:
    """Return a handler that answers JSON made of the server."""
    return lambda server, _body: json_reply(make(server))


def metrics_handler(samples: Callable[[ServerView], Mapping[str, float]]) -> Handler:
    """Return a handler that answers these samples in Prometheus' text format."""
    return lambda server, _body: metrics_reply(samples(server))


def empty(_server: ServerView, _body: bytes) -> Reply:
    """Answer 200 and nothing else."""
    return Reply(200)


def openai_models(owned_by: str, **more: Callable[[ServerView], object]) -> Handler:
    """Return ``/v1/models`` with a single model."""

    def models(server: ServerView) -> object:
        model = {"id": server.model, "object": "model", "created": 0, "owned_by": owned_by}
        return {"object": "list", "data": [model | {name: make(server) for name, make in more.items()}]}

    return json_handler(models)


def flat_words(error: HttpError) -> Reply:
    """Write an error as SGLang and trtllm-serve do: not nested."""
    message = error.message or "The request failed by order."
    body = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": error.status}
    return json_reply(body, error.status)


def unknown_fields(body: Body, known: Collection[str]) -> list[str]:
    """Return the given fields that a server does not know; the body's model allows others."""
    return sorted(name for name in body.model_fields_set if name not in known)


def plainly(call: Call) -> Call:
    """Return a call without vLLM's ways to stream, and without prompt logprobs and ids."""
    call.sampling.prompt_logprobs = call.sampling.return_token_ids = None
    call.stream_interval = 1
    call.continuous_usage = False
    return call


def fitted(
    body: Body,
    prompts: list[Prompt],
    asked: list[int],
    longest: int,
    words: Callable[[int], str],
    sampling: Sampling,
    make: type[Call] = Call,
) -> Call:
    """Return a call of prompts that leave room for an answer each.

    Args:
        body: the request.
        prompts: texts or token ids.
        asked: the most tokens of each prompt's answer; below 0: as many as there is room for.
        longest: prompt and answer together, tokens.
        words: of the refusal of a prompt with so many tokens.
        sampling: of the call.
        make: of calls.

    Raises:
        HttpError: a prompt leaves no room.
    """
    tokens = [count_tokens(prompt) for prompt in prompts]
    if max(tokens, default=0) >= longest:
        raise HttpError(400, words(max(tokens)), f"{max(tokens)}/{longest}", "exceed_context_size_error")
    rooms = [longest - own for own in tokens]
    most = [max(1, room if wanted < 0 else min(wanted, room)) for wanted, room in zip(asked, rooms, strict=True)]
    return make(body, prompts, tokens, most, sampling)


class BareRanks(RankWriter):
    """Writes a reranking as an array, the best first, as SGLang and TEI do."""

    SCORE: str = "score"

    def item(self, index: int) -> dict[str, Any]:
        return {self.SCORE: super().item(index)[self.SCORE]}

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        return self.ranked(choices)
