"""An answer in several parts: the input that goes on with one, and the parts as one answer.

For repairs of answers that were cut off (``_maps/repairs``), and for thinking that is stopped where
a server has no field for it (``thinking``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchclient.types import Choice, Completion

__all__ = ["add_bound", "continued", "joined", "kept", "unfit"]

_ANEW = frozenset(
    {
        "bad_words", "best_of", "echo", "ebnf", "frequency_penalty", "functions", "grammar", "guided_choice",
        "guided_grammar", "guided_json", "guided_regex", "json_schema", "logprobs", "presence_penalty", "prompt_embeds",
        "prompt_logprobs", "regex", "response_format", "stop", "stop_regex", "structured_outputs", "suffix", "tools",
        "top_logprobs", "truncate", "truncate_prompt_tokens", "use_beam_search",
    }
)  # fmt: skip
"""With these fields an answer is not the text that follows the prompt and the text so far. For
``stop``, ``bad_words`` and penalties a server looks at its own output alone."""


def unfit(fields: Mapping[str, Any]) -> str:
    """Return the field because of which an answer cannot be gone on with; empty: there is none."""
    name = next((name for name, value in fields.items() if name in _ANEW and _asks(name, value)), "")
    return name or ("repetition_penalty" if fields.get("repetition_penalty") not in (None, 1) else "")


def _asks(name: str, value: object) -> bool:
    """Whether a field asks for something: of logprobs, 0 asks for the text's own."""
    is_zero = type(value) is int and value == 0
    return name.endswith("logprobs") if is_zero else value not in (None, False, [])


def kept(choice: Choice) -> str:
    """Return the text that is gone on with.

    Half a character at the end is none yet, and blanks at the end of a chat may be cut off by its
    template: the model writes both again.
    """
    text = choice.text.rstrip("\ufffd")
    return text if choice.message is None else text.rstrip()


def continued(messages: list[Any], fields: dict[str, Any], text: str) -> list[Any] | None:
    """Return a conversation that goes on with a text of the assistant's; its fields are changed.

    ``None``: it cannot.
    """
    if fields.get("continue_final_message"):
        begun = messages[-1].get("content")
        return [*messages[:-1], {**messages[-1], "content": begun + text}] if isinstance(begun, str) else None
    if fields.get("add_generation_prompt") is False:
        return None
    fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return [*messages, {"role": "assistant", "content": text}]


def add_bound(fields: dict[str, Any], names: list[str], bound: int, made: int) -> None:
    """Bound what is still to come of an answer, of which ``made`` tokens are there."""
    if type(least := fields.get("min_tokens")) is int:
        fields["min_tokens"] = min(bound, max(0, least - made))
    fields |= dict.fromkeys(names or ["max_tokens"], bound)


def joined(
    first: Completion, last: Completion, text: str, message: Mapping[str, Any] | None, ids: tuple[int, ...] | None
) -> Completion:
    """Return two parts of an answer as one, with this text, message and token ids."""
    (begun,), (ended,) = first.choices, last.choices
    choice = replace(ended, text=text, token_ids=ids, message=message, extra={**begun.extra, **ended.extra})
    usage, begun_tokens, ended_tokens = None, first.output_tokens, last.output_tokens
    if first.usage is not None and last.usage is not None:
        # The prompt is the first's.
        usage = replace(
            first.usage,
            completion_tokens=first.usage.completion_tokens + last.usage.completion_tokens,
            completion_tokens_estimated=first.usage.completion_tokens_estimated
            or last.usage.completion_tokens_estimated,
        )
    return replace(
        last,
        choices=(choice,),
        usage=usage,
        counted_tokens=None if begun_tokens is None or ended_tokens is None else begun_tokens + ended_tokens,
        attempts=first.attempts + last.attempts,
        queued_s=first.queued_s,
        time_to_first_token_s=first.time_to_first_token_s,
        fixed_length=first.fixed_length,
        opened=first.opened,
    )
