"""The kinds of call."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Kind"]


class Kind(StrEnum):
    """The kind of answer asked for. Calls of two kinds never share a request."""

    COMPLETION = "completion"
    CHAT = "chat"
    EMBEDDING = "embedding"
    SCORE = "score"
    RERANK = "rerank"
    CLASSIFICATION = "classification"
    TOKENS = "tokens"
