"""From an echoed completion to a log-likelihood: which tokens continue, and how likely each was.

Rules:
- The server is asked to echo the prompt with log-probabilities and to generate nothing (``echo``,
  ``max_tokens=0``, ``logprobs=1``). Where the server refuses 0, one token is generated and left
  out.
- With token ids the boundary is a count. With text the boundary is counted in characters from the
  end, because some models put tokens of their own before a prompt and none after; the last tokens'
  texts must spell the continuation. A token across the boundary belongs to the continuation, since
  the token writes a part of the continuation.
- A prompt's first token alone may be null: nothing stands before a first token. Minus infinity
  counts where the server says so.
- A misfit is an error. A wrong likelihood is worse than none.

Source of the fields: OpenAI's legacy completions; vLLM 0.32
``entrypoints/openai/completion/serving.py``, observed on a running server. ``tokens``,
``token_logprobs`` and ``top_logprobs`` have an entry per token; the first entry of a prompt is
null; an entry of ``top_logprobs`` holds the likeliest token beside the prompt's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from batchclient._calls.call import Call
from batchclient._calls.inputs import check_ids
from batchclient.dialects._arguments import refuse_unknown
from batchclient.dialects._fields import sort_fields
from batchclient.dialects._kinds import LIKELIHOOD
from batchclient.errors import BadRequest, ConfigError, DialectError
from batchclient.types import Completion, LogLikelihood, TokenLikelihood, Usage

__all__ = ["Split", "echoed", "is_log", "log_likelihood", "make_split", "read_likelihood"]

_ASKED = {"echo": True, "logprobs": 1}
"""The fields of such a completion, beside ``max_tokens``."""
_SET_HERE = (
    "max_tokens",
    "n",
    "logprobs",
    "echo",
    "prompt_logprobs",
    "return_tokens_as_token_ids",
    "suffix",
    "best_of",
)
_NO_ECHO = "the server did not echo the prompt with its log-probabilities; log_likelihood() needs echo and logprobs"
_ROUNDED_UP = 1e-3
"""A certain token's logarithm is 0, and a little more where it was computed in 16 bits."""


class Asking(Protocol):
    """What makes calls, and knows the shortest answer that may be asked for."""

    least_output_tokens: int

    async def call(self, call: Call) -> Any: ...


async def log_likelihood(engine: Asking, call: Call) -> LogLikelihood:
    """Ask how likely a continuation is.

    Args:
        engine: the client's.
        call: of kind ``COMPLETION``; its input is the text given, and the continuation.

    Raises:
        ConfigError, DialectError, BatchClientError: see ``BatchClient.log_likelihood``.
    """
    given, continuation = call.item
    split = make_split(continuation, given, call.params)
    while True:
        least = engine.least_output_tokens
        try:
            completion = await engine.call(echoed(call, split, least))
        except BadRequest as error:
            if least or "max_tokens" not in error.message:
                raise
            engine.least_output_tokens = 1
        else:
            return read_likelihood(completion, split, generated=least > 0)


def echoed(call: Call, split: Split, least: int) -> Call:
    """Return the completion that is asked for; ``least``: the shortest answer that may be."""
    return call._replace(item=split.prompt, params={**call.params, **_ASKED, "max_tokens": least})


class _Unlikely(ValueError):
    """The server's numbers are no likelihood. The error's words are batchclient's."""


class Split:
    """A prompt and where its continuation begins.

    Attributes:
        prompt: both parts, as one prompt.
        continuation: the text of the second part; ``None`` for token ids.
        tokens: (all, of the second part), for token ids.
    """

    __slots__ = ("continuation", "prompt", "tokens")

    def __init__(self, prompt: str | list[int], continuation: str | None, tokens: tuple[int, int] | None) -> None:
        self.prompt = prompt
        self.continuation = continuation
        self.tokens = tokens

    def __repr__(self) -> str:
        return "<Split of token ids>" if self.continuation is None else "<Split of a text>"


def make_split(continuation: str | Sequence[int], given: str | Sequence[int], params: Mapping[str, Any]) -> Split:
    """Check and join the continuation and the text given.

    Raises:
        ConfigError: an argument is wrong; the error names the argument.
    """
    extra = params.get("extra_body")
    for name in _SET_HERE:
        if name in params or (isinstance(extra, Mapping) and name in extra):
            raise ConfigError(f"{name} is set by log_likelihood()", field=name)
    refuse_unknown(LIKELIHOOD, params)
    # A completion is asked for: what is wrong with the fields would be said of ``complete()``.
    sort_fields(params, method="log_likelihood()")
    if isinstance(continuation, str):
        if not isinstance(given, str):
            message = f"given is a text, as continuation is, not a {type(given).__name__}"
            raise ConfigError(message, field="given")
        if not continuation:
            raise ConfigError("continuation is empty", field="continuation")
        return Split(given + continuation, continuation, None)
    own = _ids(continuation, "continuation")
    before = [] if isinstance(given, str) and not given else _ids(given, "given") if len(given) else []
    return Split(before + own, None, (len(before) + len(own), len(own)))


def _ids(given: Any, field: str) -> list[int]:
    if isinstance(given, str):
        raise ConfigError(f"{field} is token ids, as the other argument is", field=field)
    try:
        return check_ids(given)
    except ConfigError as error:
        raise ConfigError(error.message.replace("prompt", field), field=field) from None


def read_likelihood(completion: Completion, split: Split, *, generated: bool) -> LogLikelihood:
    """Return the continuation's likelihood.

    Args:
        completion: the echoed answer.
        split: the prompt and its boundary.
        generated: whether a token was generated after the prompt; that token is left out.

    Raises:
        DialectError: the answer does not tell the likelihood.
    """
    logprobs = completion.choices[0].logprobs
    try:
        tokens, numbers, tops = (list(logprobs[name]) for name in ("tokens", "token_logprobs", "top_logprobs"))  # type: ignore[index]
        if not (tokens and len(tokens) == len(numbers) == len(tops)):
            raise TypeError
        end = len(tokens) - _generated_tokens(completion, split, len(tokens)) if generated else len(tokens)
        start = _start(tokens[:end], split)
        parts = tuple([_part(place, tokens[place], numbers[place], tops[place]) for place in range(start, end)])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        # The error itself may hold the prompt, unless it is ours.
        message = error.args[0] if isinstance(error, _Unlikely) else _NO_ECHO
        raise DialectError(message) from None
    usage = completion.usage
    if usage is None or usage.estimated:
        usage = Usage(end, len(tokens) - end)
    total = sum(part.log_likelihood for part in parts if part.log_likelihood is not None)
    return LogLikelihood(total, parts, usage, completion.attempts, completion.extra, completion.queued_s)


def _generated_tokens(completion: Completion, split: Split, tokens: int) -> int:
    """Return how many of the tokens were generated."""
    if split.tokens is not None:
        return max(0, tokens - split.tokens[0])
    usage = completion.usage
    if usage is None or usage.completion_tokens_estimated:
        raise ValueError("nothing tells the prompt's tokens from the others")
    return usage.completion_tokens


def _start(tokens: list[str], split: Split) -> int:
    """Return the place of the continuation's first token."""
    if split.tokens is not None:
        if len(tokens) != split.tokens[0]:
            raise ValueError("there are not as many tokens as were given")
        return len(tokens) - split.tokens[1]
    assert split.continuation is not None
    written, start = 0, len(tokens)
    while written < len(split.continuation):
        start -= 1
        if start < 0:
            raise ValueError("the tokens are fewer than the continuation")
        written += len(tokens[start])
    # A character's first bytes are tokens without text, before the token that completes the
    # character.
    while start and not tokens[start - 1]:
        start -= 1
    if not "".join(tokens[start:]).endswith(split.continuation):
        raise ValueError("the tokens do not spell the continuation")
    return start


def _part(place: int, text: Any, number: Any, top: Any) -> TokenLikelihood:
    if type(text) is not str:
        raise TypeError("a token is no text")
    if number is None and place == 0:
        return TokenLikelihood(text, None, None)
    if not is_log(number):
        raise _Unlikely("the server did not tell the log-probability of every token of the continuation")
    if not isinstance(top, Mapping) or not top or not all(map(is_log, top.values())):
        raise _Unlikely("the server did not tell for every token of the continuation which one is the likeliest")
    # By value: two tokens may have the same text.
    return TokenLikelihood(text, float(number), number >= max(top.values()))


def is_log(number: Any) -> bool:
    """Whether a number is the logarithm of a probability, as servers round logarithms; NaN is none."""
    return type(number) in (int, float) and number <= _ROUNDED_UP
