"""Arguments that are gone: what stands in their place now."""

from __future__ import annotations

from collections.abc import Iterable

from batchclient.errors import ConfigError

__all__ = ["OLD", "refuse_old"]

OLD = {
    "count_tokens": "is gone: the server refuses a prompt that is too long",
    "length_reach": "is gone: the server's dialect says which lengths may share a list",
    "max_model_len": "is gone: the servers tell it, and servers() shows it",
    "on_adjustment": "is gone: story() and statistics().adjustments tell every change",
    "refill_ratio": "is the preset's now: preset=…",
    "refill_s": "is the preset's now: preset=…",
    "render_chat": "is gone: complete() takes the prompt that a template of yours made",
    "starvation_s": "is the preset's now: preset=…",
}
"""By name: the rest of the sentence."""


def refuse_old(names: Iterable[str]) -> None:
    """Refuse an argument that a former version had.

    Raises:
        ConfigError: there is such a name; the message says what stands in its place.
    """
    for name in names:
        if name in OLD:
            raise ConfigError(f"{name} {OLD[name]}", field=name)
