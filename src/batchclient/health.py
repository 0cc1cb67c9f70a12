"""Whether an answer is one: the health of a completion, told by what came.

Rules:
- The first that holds counts: ``runaway``, ``filtered``, ``truncated``, ``reasoning_only``,
  ``empty``, ``ok``. Of several choices the first that is not ``ok`` counts.
- A tool call is an answer, and so is a refusal in words. White space alone is none.
- An answer that ended at its bound amid its reasoning, or before its first word, is
  ``reasoning_only``: ``truncated`` is said of an answer alone.
- A text that begins with ``<think>``, or has ``</think>`` and no ``<think>`` before it, is
  reasoning up to its last ``</think>``: so is an answer about the tag that begins or ends with it.
  So it is with the tags of other models, and where the prompt of a call with ``thinking_tokens``
  has begun to think.
- A call for at most four tokens, for exactly so many, or with ``ignore_eos`` has ``fixed_length``:
  its end at the bound is no truncation.
- Text is looked at for a loop only where the answer did not end by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal, get_args

__all__ = ["HEALTHS", "Health", "as_it_came", "health_of", "is_cut_off", "is_runaway", "no_answers", "reasoning_in"]

Health = Literal["ok", "truncated", "empty", "reasoning_only", "invalid", "filtered", "runaway"]
"""What an answer is.

``ok``; ``truncated``: ended at the bound; ``empty``: neither text nor a tool call;
``reasoning_only``: reasoning, and no answer, whether it ended or was cut off; ``invalid``: does not
fit ``response_model``, or is none of ``labels``; ``filtered``: the server held the answer back;
``runaway``: the text ends in a loop.
"""
HEALTHS: tuple[Health, ...] = get_args(Health)

CUT_OFF = ("length", "max_tokens", "model_length")
"""Words for an end at the bound: OpenAI's, and those of other servers and gateways."""
TAGS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
"""The tags around reasoning: of Qwen, DeepSeek and most others, Mistral, Seed, Cohere."""
_ENDS_OF_TAGS = frozenset("<[>]")
_LEAST_LOOP = 256
"""Characters of a loop, or of white space, at least."""
_LEAST_TURNS = 4
_LONGEST_TURN = 1024
LONGEST_LOOP = _LEAST_TURNS * _LONGEST_TURN
_PROBE = 64
_SAYS_SOMETHING = ("tool_calls", "function_call", "refusal", "audio")


def no_answers() -> dict[Health, int]:
    """Return a count for each kind, all zero."""
    return dict.fromkeys(HEALTHS, 0)


def health_of(answer: Any) -> Health:
    """Return the health of a ``Completion``; never ``invalid``, which only a schema can tell."""
    fixed_length, opened = answer.fixed_length, answer.opened
    for choice in answer.choices or as_it_came(answer.reply):
        text, reason = choice.text, choice.finish_reason
        said = text.strip() if text else ""
        may_think = opened or said[:1] in _ENDS_OF_TAGS or said[-1:] in _ENDS_OF_TAGS
        answers = said and not (may_think and _is_thought(said, opened))
        if reason != "stop":
            if not reason or reason in CUT_OFF:
                if not fixed_length:
                    if is_runaway(text or reasoning_in(choice)):
                        return "runaway"
                    if reason:
                        return "truncated" if answers or not _is_reasoning(choice, said) else "reasoning_only"
            elif reason == "repetition":
                return "runaway"
            elif reason == "content_filter":
                return "filtered"
        if answers:
            continue
        health: Health = "reasoning_only" if said or reasoning_in(choice) else "empty"
        message = choice.message
        if message is None or not any(message.get(name) for name in _SAYS_SOMETHING):
            return health
    return "ok"


def _is_thought(said: str, opened: str) -> bool:
    """Whether a text without blanks around it is reasoning to its end, or to the tag that ends it."""
    for tag, closing in TAGS.items():
        is_closed = said.endswith(closing)
        begins = tag == opened or said.startswith(tag) or (is_closed and tag not in said.partition(closing)[0])
        if begins and (is_closed or closing not in said):
            return True
    return False


def is_cut_off(answer: Any) -> bool:
    """Whether a ``Completion`` ended at its bound: amid its answer, or amid its reasoning."""
    health = answer.health
    is_amid_reasoning = health == "reasoning_only" and not answer.fixed_length and answer.finish_reason in CUT_OFF
    return health == "truncated" or is_amid_reasoning


def _is_reasoning(choice: Any, said: str) -> bool:
    """Whether a choice without an answer has reasoning, and no call of a tool."""
    message = choice.message or {}
    return bool(said or reasoning_in(choice)) and not any(message.get(name) for name in _SAYS_SOMETHING)


def is_runaway(text: str) -> bool:
    """Whether a text ends in a loop, at least four times the same, or in a long run of white space."""
    size = len(text)
    if size < _LEAST_LOOP:
        return False
    probe = text[-_PROBE:]
    first = max(size - _PROBE - _LONGEST_TURN, 0)
    # Where a text goes round, its end stands a turn before, too.
    at = text.rfind(probe, first, size - 1)
    while at >= 0:
        turn = size - _PROBE - at
        loop = max(_LEAST_LOOP, _LEAST_TURNS * turn)
        if loop <= size and text[-loop:-turn] == text[turn - loop :]:
            return True
        at = text.rfind(probe, first, at + _PROBE - 1)
    return probe.isspace() and text[-_LEAST_LOOP:].isspace()


def reasoning_in(choice: Any) -> str:
    """Return the reasoning that stands beside a choice's text; empty: none does."""
    for said in (choice.message, choice.extra):
        if said:
            text = said.get("reasoning") or said.get("reasoning_content")
            if text:
                return text if isinstance(text, str) else str(text)
    return ""


def as_it_came(reply: Any) -> Iterator[Any]:
    """Yield the choices of a reply that is handed on as it came, in whatever form."""
    body = None if reply is None else reply.body
    choices = body.get("choices") if isinstance(body, dict) else None
    for each in choices if isinstance(choices, list) else ():
        if isinstance(each, dict):
            message = each.get("message")
            message = message if isinstance(message, dict) else None
            text = each.get("text") if message is None else message.get("content")
            reason = each.get("finish_reason")
            yield SimpleNamespace(
                text=text if isinstance(text, str) else str(text or ""),
                finish_reason=reason,
                message=message,
                extra=each,
            )
