"""A ``/v1/completions`` body, read and checked as by vLLM 0.32, with its error texts.

Rules:
- Checks run in the real server's order: JSON, field types, the model, then the prompts. The first
  failure answers.
- A bad prompt fails the whole request, and the message does not name the prompt.
- Unknown fields are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pydantic_core

from batchclient.simulator.text import Prompt, count_tokens

__all__ = [
    "CompletionCall",
    "HttpError",
    "Limits",
    "bad_request",
    "check_fields",
    "check_lengths",
    "check_sampling",
    "checked_tokens",
    "error_body",
    "invalid",
    "is_ids",
    "parse_completion",
    "parse_json",
    "problem",
]

_MAX_STOP_STRINGS = 4
_MAX_LOGPROBS = 20
_MAX_PROBLEMS = 10
# VLLM_MAX_N_SEQUENCES.
_MAX_CHOICES = 16_384
# More than any open model's vocabulary.
_VOCABULARY = 300_000


class HttpError(Exception):
    """A refusal: an answer with ``status``, the whole ``body`` and extra ``headers``."""

    def __init__(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body
        self.headers = headers


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """Return vLLM's error object."""
    return pydantic_core.to_json({"error": {"message": message, "type": kind, "param": param, "code": code}})


def bad_request(message: str, param: str | None = None, kind: str = "BadRequestError") -> HttpError:
    """Return a 400."""
    return HttpError(400, error_body(message, kind, 400, param))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request.

    Args:
        model: the served name.
        max_model_len_tokens: prompt and answer together.
        max_prompts: the longest list of prompts; vLLM's ``VLLM_MAX_COMPLETION_PROMPTS``.
        is_strict: whether other models' names, tools and pictures are refused, as by a vLLM that
            serves one text model.
    """

    model: str
    max_model_len_tokens: int
    max_prompts: int = 1024
    is_strict: bool = True

    def check_model(self, fields: dict[str, Any]) -> None:
        """Refuse another model than the server's; raise ``HttpError``."""
        model = fields.get("model")
        if model and model != self.model and self.is_strict:
            message = f"The model `{model}` does not exist. Valid aliases: {self.model}."
            raise HttpError(404, error_body(message, "NotFoundError", 404, "model"))


class CompletionCall:
    """A checked request.

    Attributes:
        max_tokens: for each prompt: the tokens asked for, cut to the rest of the context.
        fields: the whole body.
        form_is_free: whether neither JSON nor a choice is demanded.
    """

    __slots__ = (
        "continuous_usage",
        "echo",
        "fields",
        "form_is_free",
        "include_usage",
        "logprobs",
        "max_tokens",
        "n",
        "prompt_logprobs",
        "prompt_tokens",
        "prompts",
        "return_token_ids",
        "stop",
        "stream",
        "stream_interval",
    )

    def __init__(self, fields: dict[str, Any], prompts: list[Prompt]) -> None:
        options = fields.get("stream_options") or {}
        stop = fields.get("stop") or []
        self.fields: dict[str, Any] = fields
        self.prompts: list[Prompt] = prompts
        self.prompt_tokens: list[int] = []
        self.max_tokens: list[int] = []
        self.n: int = fields.get("n") or 1
        self.echo: bool = bool(fields.get("echo"))
        self.form_is_free: bool = fields.get("structured_outputs") is None and fields.get("response_format") is None
        self.logprobs: int | None = fields.get("logprobs")
        # As on the real server, echoed logprobs come with the prompt's own.
        self.prompt_logprobs: int | None = fields.get("prompt_logprobs")
        if self.prompt_logprobs is None and self.echo:
            self.prompt_logprobs = self.logprobs
        self.return_token_ids: bool = bool(fields.get("return_token_ids"))
        self.stop: list[str] = [stop] if isinstance(stop, str) else stop
        self.stream: bool = bool(fields.get("stream"))
        self.stream_interval: int = fields.get("stream_interval") or 1
        self.include_usage: bool = bool(options.get("include_usage"))
        self.continuous_usage: bool = self.include_usage and bool(options.get("continuous_usage_stats"))

    @property
    def sequences(self) -> int:
        """The number of sequences for the engine."""
        return len(self.prompts) * self.n

    def fields_of(self, prompt: int) -> dict[str, Any]:
        """Return the fields that shape a prompt's answers: here the whole body, for all prompts."""
        return self.fields

    def stops_of(self, prompt: int) -> list[str]:
        """Return the stop strings of a prompt's answers."""
        return self.stop


def parse_completion(body: bytes, limits: Limits) -> CompletionCall:
    """Read and check a body; refuse with vLLM's ``HttpError``."""
    fields = parse_json(body)
    prompts = _prompts(fields, limits)
    check_fields(fields)
    limits.check_model(fields)
    if not prompts:
        raise bad_request("You must pass at least one prompt")
    call = CompletionCall(fields, prompts)
    asked = fields.get("max_tokens")
    check_sampling(call, asked)
    check_lengths(call, limits, 16 if asked is None else asked)
    return call


def parse_json(body: bytes) -> dict[str, Any]:
    """Read a body; raise ``HttpError`` if it is no JSON object."""
    try:
        fields = pydantic_core.from_json(body)
    except ValueError:
        raise invalid([_json_problem(body)]) from None
    if not isinstance(fields, dict):
        message = "Input should be a valid dictionary or object"
        raise invalid([problem("model_attributes_type", "body", message, fields)])
    return fields


def _json_problem(body: bytes) -> tuple[str, str]:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        at, message = error.pos, error.msg
    except RecursionError:
        at, message = 0, "it is nested too deeply"
    except ValueError:
        at, message = 0, "invalid UTF-8"
    else:
        at, message = 0, "invalid JSON"
    loc = f"body.{at}"
    shown = {"type": "json_invalid", "loc": loc, "msg": "JSON decode error", "input": "<dict of 0 items>"}
    return loc, str(shown | {"ctx": {"error": message}})


def problem(
    kind: str, loc: str, message: str, value: object, context: dict[str, object] | None = None
) -> tuple[str, str]:
    """Return a line of a validation error, with its ``loc``."""
    shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, list | dict) else value
    line = {"type": kind, "loc": loc, "msg": message, "input": shown}
    return loc, str(line if context is None else line | {"ctx": context})


def invalid(problems: list[tuple[str, str]]) -> HttpError:
    """Return the refusal of fields of wrong types."""
    lines = "".join(f"\n  {line}" for _, line in problems[:_MAX_PROBLEMS])
    if len(problems) > _MAX_PROBLEMS:
        lines += f"\n  ...and {len(problems) - _MAX_PROBLEMS} more errors"
    plural = "" if len(problems) == 1 else "s"
    return bad_request(f"{len(problems)} validation error{plural}:{lines}", problems[0][0], "Bad Request")


def _prompts(fields: dict[str, Any], limits: Limits) -> list[Prompt]:
    prompt = fields.get("prompt")
    if not prompt and not isinstance(prompt, list):
        message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise bad_request(message, "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise invalid(_prompt_problems(prompt))
    if not prompt:
        return []
    if is_ids(prompt):
        return [prompt]
    if len(prompt) > limits.max_prompts:
        raise bad_request(
            f"prompt list length {len(prompt)} exceeds the maximum allowed count of {limits.max_prompts}. To increase "
            "this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable. (parameter=prompt)",
            "prompt",
        )
    if all(type(each) is str for each in prompt) or all(is_ids(each) for each in prompt):
        return prompt
    raise invalid(_prompt_problems(prompt))


def is_ids(value: object) -> bool:
    """Whether a value is a list of token ids; an empty list is."""
    return isinstance(value, list) and all(type(each) is int for each in value)


def _prompt_problems(prompt: object) -> list[tuple[str, str]]:
    """Return the problems of a prompt in each of the four forms that a prompt may have."""
    not_list = problem("list_type", "body.prompt", "Input should be a valid list", prompt)
    not_text = problem("string_type", "body.prompt", "Input should be a valid string", prompt)
    if not isinstance(prompt, list):
        return [not_list, not_list, not_text, not_list]
    as_ids, as_lists, as_texts = [], [], []
    for i, each in enumerate(prompt):
        loc = f"body.prompt.{i}"
        if isinstance(each, str):
            message = "Input should be a valid integer, unable to parse string as an integer"
            as_ids.append(problem("int_parsing", loc, message, each))
        elif type(each) is not int:
            as_ids.append(problem("int_type", loc, "Input should be a valid integer", each))
        if not isinstance(each, list):
            as_lists.append(problem("list_type", loc, "Input should be a valid list", each))
        if not isinstance(each, str):
            as_texts.append(problem("string_type", loc, "Input should be a valid string", each))
    return [*as_ids, *as_lists, not_text, *as_texts]


_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTEGERS = (
    "max_tokens",
    "n",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "min_tokens",
    "stream_interval",
    "top_k",
    "priority",
)


def check_fields(fields: dict[str, Any], more_integers: tuple[str, ...] = ()) -> None:
    """Check the types of the generating routes' common fields; raise ``HttpError`` if wrong."""
    problems = [
        problem("float_type", f"body.{name}", "Input should be a valid number", value)
        for name in _NUMBERS
        if (value := fields.get(name)) is not None and type(value) not in (int, float)
    ]
    problems += [
        problem("int_type", f"body.{name}", "Input should be a valid integer", value)
        for name in (*_INTEGERS, *more_integers)
        if (value := fields.get(name)) is not None and type(value) is not int
    ]
    stop = fields.get("stop")
    if stop is not None and not isinstance(stop, str | list):
        problems.append(problem("string_type", "body.stop", "Input should be a valid string", stop))
    elif isinstance(stop, list):
        problems += [
            problem("string_type", f"body.stop.{i}", "Input should be a valid string", each)
            for i, each in enumerate(stop)
            if not isinstance(each, str)
        ]
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        problems.append(problem("model_attributes_type", "body.stream_options", message, options))
    if problems:
        raise invalid(problems)
    if isinstance(stop, list) and len(stop) > _MAX_STOP_STRINGS:
        raise bad_request(f"You can use at most {_MAX_STOP_STRINGS} stop strings, got {len(stop)}.", "stop")
    if options and not fields.get("stream"):
        raise bad_request(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options"
        )
    if fields.get("stream") and fields.get("prompt_logprobs") is not None:
        message = "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"
        raise bad_request(message, "prompt_logprobs")


def check_sampling(call: CompletionCall, max_tokens: int | None) -> None:
    """Check the sampling fields' values; raise ``HttpError``. ``max_tokens``: as asked for."""
    fields = call.fields
    n = fields.get("n")
    if n is not None and n < 1:
        raise bad_request(f"n must be at least 1, got {n}.", "n")
    if call.n > _MAX_CHOICES:
        raise bad_request(f"n must be at most {_MAX_CHOICES}, got {n}.", "n")
    if call.stream_interval < 1:
        raise bad_request(f"stream_interval must be at least 1, got {call.stream_interval}.", "stream_interval")
    temperature = fields.get("temperature")
    if temperature is not None and temperature < 0:
        raise bad_request(f"temperature must be non-negative, got {float(temperature)}.", "temperature")
    if temperature == 0 and call.n > 1:
        raise bad_request(f"n must be 1 when using greedy sampling, got {n}.")
    if call.logprobs is not None and call.logprobs > _MAX_LOGPROBS:
        message = f"Requested sample logprobs of {call.logprobs}, which is greater than max allowed: {_MAX_LOGPROBS}"
        raise bad_request(f"{message} (parameter=logprobs, value={call.logprobs})", "logprobs")
    if max_tokens is not None and max_tokens < (0 if call.echo else 1):
        message = f"max_tokens must be at least 1, got {max_tokens}. (parameter=max_tokens, value={max_tokens})"
        raise bad_request(message, "max_tokens")


def check_lengths(call: CompletionCall, limits: Limits, asked: int | None) -> None:
    """Set each prompt's length and the most tokens that it may generate.

    ``asked`` is ``None`` for the rest of the context.

    Raises:
        HttpError: a prompt is empty or does not fit, or ``asked`` never could.
    """
    longest = limits.max_model_len_tokens
    if asked is not None and asked > longest:
        raise bad_request(
            f"max_tokens ({asked}) cannot be greater than max_model_len={longest}. Please request fewer output tokens. "
            f"(parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    for prompt in call.prompts:
        tokens = checked_tokens(prompt, limits, longest - 1)
        call.prompt_tokens.append(tokens)
        # vLLM silently cuts to the rest of the context. ``max_tokens=0`` (with ``echo``) still
        # makes a token, which the reply counts and does not show.
        call.max_tokens.append(max(1, longest - tokens if asked is None else min(asked, longest - tokens)))


def checked_tokens(prompt: Prompt, limits: Limits, most: int) -> int:
    """Return the length of a prompt.

    Raises:
        HttpError: the prompt is empty, has more than ``most`` tokens, or a token of no model.
    """
    tokens = count_tokens(prompt)
    if not tokens:
        raise bad_request("The decoder prompt cannot be empty")
    if isinstance(prompt, list) and max(prompt) >= _VOCABULARY:
        raise bad_request(f"Token id {max(prompt)} is out of vocabulary")
    if tokens > most:
        longest = limits.max_model_len_tokens
        raise bad_request(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains at least "
            f"{longest + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            f"the length of the input prompt. (parameter=input_tokens, value={longest + 1})",
            "input_tokens",
        )
    return tokens
