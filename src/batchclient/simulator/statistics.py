"""The embedded server's counts."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

__all__ = ["Counters"]

_LOG_ENTRIES = 10_000


@dataclass
class Counters:
    """The counts so far.

    ``requests`` are completion requests that passed validation, ``prompts`` are their prompts.

    Attributes:
        statuses: of the replies that came from no engine.
        log: the last 10,000 completion requests: (time in seconds, prompts, whether streamed).
    """

    requests: int = 0
    prompts: int = 0
    streamed_requests: int = 0
    disconnects: int = 0
    aborted_sequences: int = 0
    rejections: int = 0
    list_sizes: Counter[int] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    log: deque[tuple[float, int, bool]] = field(default_factory=lambda: deque(maxlen=_LOG_ENTRIES))

    def note(self, now: float, prompts: int, *, is_stream: bool) -> None:
        """Count a completion request that has passed validation."""
        self.requests += 1
        self.prompts += prompts
        self.streamed_requests += is_stream
        self.list_sizes[prompts] += 1
        self.log.append((now, prompts, is_stream))

    def snapshot(self) -> dict[str, object]:
        """Return all counts, for JSON."""
        return vars(self) | {
            "list_sizes": {str(size): count for size, count in sorted(self.list_sizes.items())},
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "finish_reasons": dict(self.finish_reasons),
            "log": list(self.log),
        }
