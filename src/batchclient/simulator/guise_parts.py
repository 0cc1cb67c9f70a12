"""Parts of the guises of other servers than vLLM: pages, checks in their words, OpenAI's replies.

Rules:
- Only known features of a server are there: no page, no field, no header of vLLM's otherwise.
- Sampling parameters are translated into OpenAI's names when a body is read. So the same call has
  the same answer in every guise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pydantic_core

from batchclient.simulator.chat import parse_chat
from batchclient.simulator.exchange import JSON_HEADERS
from batchclient.simulator.guise import Page, Served
from batchclient.simulator.text import Generation, Prompt, count_tokens, pieces, token_id
from batchclient.simulator.validation import CompletionCall, HttpError, Limits
from batchclient.simulator.wire import ReplyWriter

__all__ = [
    "OpenAIWriter",
    "Parse",
    "any_chat",
    "check_prompts",
    "empty_page",
    "json_page",
    "metrics_page",
    "openai_models",
    "read_object",
    "restated",
    "texts_of",
    "to_json",
    "token_ids",
    "whatever_model",
]

Parse = Callable[[bytes, Limits], CompletionCall]
Words = Callable[[int, str], HttpError]
"""(status, message) to a refusal in a server's own form."""
_PLAIN_TEXT = (("content-type", "text/plain; version=0.0.4; charset=utf-8"),)


def to_json(value: object) -> str:
    """Write JSON as text."""
    return pydantic_core.to_json(value).decode()


# Pages -------------------------------------------------------------------------------------------------------------


def json_page(make: Callable[[Served], object]) -> Page:
    """Return a page of JSON made of the server."""
    return lambda server, _body: (200, JSON_HEADERS, pydantic_core.to_json(make(server)))


def metrics_page(samples: Callable[[Served], Mapping[str, float]]) -> Page:
    """Return a page in Prometheus' text format: gauges and counters by name, labels included."""

    def page(server: Served, _body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        text = "".join(f"{name} {float(value)}\n" for name, value in samples(server).items())
        return 200, _PLAIN_TEXT, text.encode()

    return page


def empty_page(_server: Served, _body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """Answer 200 and nothing else."""
    return 200, (), b""


def openai_models(owned_by: str, **more: Callable[[Served], object]) -> Page:
    """Return ``/v1/models`` with a single model."""
    return json_page(
        lambda server: {
            "object": "list",
            "data": [
                {"id": server.model, "object": "model", "created": 0, "owned_by": owned_by}
                | {name: make(server) for name, make in more.items()}
            ],
        }
    )


# Reading -----------------------------------------------------------------------------------------------------------


_INTEGERS = "max_tokens max_completion_tokens n_predict n_probs n seed top_k min_tokens top_logprobs_num"
_NUMBERS = "temperature top_p min_p presence_penalty frequency_penalty repetition_penalty repeat_penalty"
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_INTEGERS.split(), (int,)),
    **dict.fromkeys(_NUMBERS.split(), (int, float)),
    "logprobs": (int, bool),  # a number for completions, true or false for chats
    "stop": (str, list),
    "stream_options": (dict,),
}


def restated(parse: Parse, words: Words) -> Parse:
    """Return vLLM's checks, with refusals in a server's own form."""

    def parse_as(body: bytes, limits: Limits) -> CompletionCall:
        try:
            return parse(body, limits)
        except HttpError as error:
            raise words(error.status, pydantic_core.from_json(error.body)["error"]["message"]) from None

    return parse_as


def whatever_model(parse: Parse) -> Parse:
    """Return the same checks, except of the model's name."""

    def parse_any(body: bytes, limits: Limits) -> CompletionCall:
        try:
            model = pydantic_core.from_json(body)["model"]
        except (ValueError, KeyError, TypeError):
            model = limits.model
        return parse(body, replace(limits, model=model))

    return parse_any


any_chat: Parse = whatever_model(parse_chat)


def read_object(body: bytes, words: Words) -> dict[str, Any]:
    """Read a JSON object, and check the types of the fields heeded by every server.

    Raises:
        HttpError: the body is no object, or a field has a wrong type.
    """
    try:
        fields = pydantic_core.from_json(body)
    except ValueError:
        raise words(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise words(400, "the body is not an object")
    for name, value in fields.items():
        kinds = _TYPES.get(name)
        if kinds is not None and value is not None and type(value) not in kinds:
            raise words(400, f"{name}: a {type(value).__name__} is of the wrong type")
    stop = fields.get("stop")
    if isinstance(stop, list) and not all(isinstance(each, str) for each in stop):
        raise words(400, "stop: a stop string is a text")
    return fields


def check_prompts(call: CompletionCall, asked: list[int], longest: int, too_long: Callable[[int], HttpError]) -> None:
    """Note the prompts' lengths and the most tokens that each may generate.

    Args:
        call: gets ``prompt_tokens`` and ``max_tokens``.
        asked: the most tokens of each prompt's answer; below 0: as many as there is room for.
        longest: prompt and answer together, tokens.
        too_long: makes the refusal of a prompt with so many tokens.

    Raises:
        HttpError: a prompt leaves no room.
    """
    for prompt, tokens_asked in zip(call.prompts, asked, strict=True):
        tokens = count_tokens(prompt)
        if tokens >= longest:
            raise too_long(tokens)
        room = longest - tokens
        call.prompt_tokens.append(tokens)
        call.max_tokens.append(max(1, room if tokens_asked < 0 else min(tokens_asked, room)))


def texts_of(body: bytes, name: str, words: Words) -> tuple[list[str], bool]:
    """Return the texts of a field with a text or a list, and whether it is a list; or refuse."""
    given = read_object(body, words).get(name)
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(each, str) for each in texts):
        raise words(422, f"{name} is a text or a list of them")
    return texts, isinstance(given, list)


def token_ids(text: str) -> list[int]:
    """Return a text's token ids."""
    return [token_id(each) for each in pieces(text)]


# Writing -----------------------------------------------------------------------------------------------------------


class OpenAIWriter(ReplyWriter):
    """Writes completions with only OpenAI's fields; subclasses have their server's differences."""

    __slots__ = ("_created_s",)

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        super().__init__(call, reply_id, created_s, model)
        self._created_s = created_s
        self._model = model

    def choice(self, index: int, generation: Generation) -> str:
        """Return a finished choice of a plain reply."""
        return to_json(self.piece(index, generation, 0, generation.tokens))

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        """Return a whole plain reply."""
        usage = self.usage(sum(self._call.prompt_tokens), completion_tokens)
        return f'{self._head}{",".join(choices)}],"usage":{to_json(usage)}}}'.encode()

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes:
        """Return a choice's event for the tokens ``before`` to ``after``."""
        tail = self.event_tail(index, generation, after)
        return f"data: {self._head}{to_json(self.piece(index, generation, before, after))}]{tail}}}\n\n".encode()

    def usage_event(self, completion_tokens: int) -> bytes:
        """Return the chunk with the total usage, for ``include_usage``."""
        usage = self.usage(sum(self._call.prompt_tokens), completion_tokens)
        return f'data: {self._head}],"usage":{to_json(usage)}}}\n\n'.encode()

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        """Return a choice, or the part of a choice in an event."""
        call = self._call
        prompt = call.prompts[index // call.n]
        text = generation.text_after(after)[len(generation.text_after(before)) if before else 0 :]
        if call.echo and not before:
            text = shown(prompt) + text
        logprobs = None if call.logprobs is None else self._logprobs(prompt, generation, before, after)
        finish = generation.finish_reason if after >= generation.tokens else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def event_tail(self, index: int, generation: Generation, after: int) -> str:
        """Return the members beside an event's ``choices``, as text."""
        return ""

    @staticmethod
    def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
        """Return a usage object."""
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }


def shown(prompt: Prompt) -> str:
    """Return a prompt as text."""
    return prompt if isinstance(prompt, str) else "".join(f" {each}" for each in prompt)
