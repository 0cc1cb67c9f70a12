"""Labels: which of some words an answer is.

Rules:
- Whatever the server promises, the text is compared here, as ``normalised`` says.
- An answer that is cut off, and is a label, is one: its end at the bound is no truncation.
- A model that thinks first would have to be given room, and says its label behind its reasoning:
  the first answer with reasoning is an error that says what to give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchclient.dialects._labels import LABELS, normalised
from batchclient.errors import AnswerInvalid, ConfigError
from batchclient.types import Choice, Completion

__all__ = ["field_of", "parted", "reader", "thinks"]


def field_of(params: Mapping[str, Any], name: str) -> Any:
    """Return a parameter of a call, also of its ``extra_body``; ``None``: it is not given."""
    extra = params.get("extra_body")
    return extra[name] if isinstance(extra, Mapping) and name in extra else params.get(name)


def thinks(model: str | None, way: str = "labels need thinking_tokens=0") -> ConfigError:
    """Return the error of a call whose model thinks before it answers; ``None``: the client's."""
    which = "the model" if model is None else f"the model {model!r:.80}"
    return ConfigError(f"{which} thinks before it answers: {way}", field=LABELS)


def reader(
    labels: Sequence[str], bound: str, on_reasoning: Callable[[], ConfigError] | None, note: Callable[[], None]
) -> Callable[[Completion], Completion]:
    """Return a function that finds the label in an answer.

    Args:
        labels: the caller's.
        bound: the caller's own on the answer's length, such as ``"max_tokens=1"``; empty: none.
        on_reasoning: makes the error of an answer with reasoning; ``None``: the caller has asked
            for none, and what comes all the same is left out.
        note: called for an answer whose only fault is that it is none of the labels.

    The function raises:
        ConfigError: the model thinks.
        AnswerInvalid: a choice is none of the labels.
    """
    known = {normalised(label): label for label in labels}

    def finish(completion: Completion) -> Completion:
        for choice in completion.choices:
            reasoning, text = parted(choice)
            if reasoning and on_reasoning is not None:
                raise on_reasoning()
            choice.label = known.get(normalised(text))
        wrong = next((choice for choice in completion.choices if choice.label is None), None)
        if wrong is None:
            return completion
        which = f"choice {wrong.index} of the answer" if len(completion.choices) > 1 else "the answer"
        why = ""
        if wrong.finish_reason == "length":
            why = f": it was cut off at {bound}; leave that out" if bound else ": it was cut off"
        error = AnswerInvalid(f"{which} is none of the {len(known)} labels{why}", attempt=completion.attempts)
        error.completion, error.retryable = completion, True
        if (health := completion.health) != "ok":
            error.health = health
        else:
            note()
        raise error

    return finish


def parted(choice: Choice) -> tuple[str, str]:
    """Return the reasoning of a choice, and its answer."""
    for said in (choice.message, choice.extra):
        reasoning = said and (said.get("reasoning") or said.get("reasoning_content"))
        if reasoning:
            return str(reasoning), choice.text
    before, tag, after = choice.text.rpartition("</think>")
    if not tag and choice.text.lstrip().startswith("<think>"):
        before, after = choice.text, ""
    return before.strip().removeprefix("<think>").strip(), after
