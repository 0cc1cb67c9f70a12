"""Where others have a say in openai's calls, and so must be asked: subclasses that override its hooks, and tracers and mocks that replace ``create``.

Rules:
- A subclass that overrides what builds, sends or reads requests shares none: a shared request is neither built nor sent there.
- A ``create`` that is not openai's own (a tracer wraps it, a mock stands for it) is called, always.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import openai

__all__ = ["is_openais", "seams"]

_HOOKS = (
    "request",
    "_prepare_options",
    "_prepare_request",
    "_build_request",
    "_build_headers",
    "_send_request",
    "_process_response",
    "_process_response_data",
)
_HOME = str(Path(openai.__file__).parent)
_log = logging.getLogger("batchclient")


def seams(kind: type, openais: type, ours: Any) -> tuple[bool, bool]:
    """Whether a subclass's requests may be shared, and whether its resources may skip ``post``.

    Args:
        kind: the subclass.
        openais: openai's own class.
        ours: the drop-in.
    """
    own = [name for name in _HOOKS if getattr(kind, name, None) is not getattr(openais, name, None)]
    if own:
        _log.warning(
            "%s overrides %s: its calls are sent by openai's own code, and share no requests", kind.__name__, own[0]
        )
    member: Any = kind
    return not own, not own and member.post is ours.post and member.share is ours.share


@cache
def is_openais(function: Any) -> bool:
    """Whether a function is openai's own, as it came with the package."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_HOME)
