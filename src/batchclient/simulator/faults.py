"""Faults on demand, for completion requests.

Rules:
- A fault is written ``KIND[=VALUE][,KEY=VALUE]...``, as in ``status=503,rate=0.05`` or
  ``status=429,retry_after=1,count=2``.
- Each fault counts the requests that match: the first ``after`` pass, then each is hit with
  probability ``rate`` until ``count`` were hit. Without the three keys every match is hit.
- Faults are tried in order. The first that hits decides, except ``slow``, which joins any other.
- Randomness comes from a seeded generator per fault, so that the faults' luck is independent.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from batchclient.simulator.requests import Call

__all__ = ["KINDS", "Fault", "FaultInjector"]

_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"-?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:e-[0-9]{1,2})?")

KINDS: dict[str, str] = {
    "status": "=CODE: answer with this status; retry_after=SECONDS adds the header",
    "refuse": "refuse the connection (over a real socket: close it without a byte)",
    "disconnect": "close the connection before the headers",
    "cut": "close it in the middle of the body",
    "abort": "200, but finish_reason is abort and the text is cut short",
    "error_event": "an error event in the middle of a stream, then [DONE]; a plain request gets 500",
    "stall": "never answer",
    "stall_body": "fall silent in the middle of the body",
    "slow": "=SECONDS: wait this long before taking the request up",
    "drop_choice": "leave out the last choice of the reply",
    "double_choice": "send the first choice of the reply twice",
    "first_only": "serve only the first prompt of a list, as if it were alone",
    "serial": "serve the prompts of a list one after the other",
    "reorder": "the choices of a plain list in the opposite order, each with its index",
    "sum_usage": "beside each choice of a streamed list, the usage of the whole list so far",
    "no_lists": "400 to a list of prompts, as servers that know only one",
    "no_stream_lists": "400 to a streamed list of prompts",
    "bad_prompt": "=TEXT: 400 to a request with a prompt that contains TEXT",
    "garbage": "200 with a body that is not JSON",
    "html": "200 with a proxy's HTML page",
}
_WITH_NUMBER = ("status", "slow")
_WITH_TEXT = ("bad_prompt",)
_WHOLE = ("count", "after")
_KEYS = {"rate": "rate", "count": "count", "after": "after", "retry_after": "retry_after_s"}
"""By key of a text: the field."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and which requests it hits.

    Args:
        kind: one of ``KINDS``.
        value: the number after the kind's ``=``: the status, the seconds of ``slow``.
        text: for ``bad_prompt``.
        rate: probability, 0 to 1.
        count: the most requests that are hit; ``None``: any number.
        after: how many matching requests pass first.
        retry_after_s: for ``status``: the Retry-After header.

    Raises:
        ValueError: an argument is wrong.
    """

    kind: str
    value: float = 0.0
    text: str = ""
    rate: float = 1.0
    count: int | None = None
    after: int = 0
    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no fault {self.kind!r}; there are: {', '.join(KINDS)}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is a probability between 0 and 1, got {self.rate}")
        if self.kind == "status" and not 200 <= self.value <= 599:
            raise ValueError(f"status takes an HTTP status, as in status=503, got {self.value:g}")
        if self.kind == "slow" and self.value <= 0:
            raise ValueError(f"slow takes seconds above 0, as in slow=0.5, got {self.value:g}")
        if self.kind == "bad_prompt" and not self.text:
            raise ValueError("bad_prompt takes a text, as in bad_prompt=poison")
        if self.retry_after_s is not None and self.kind != "status":
            raise ValueError("retry_after belongs to status alone")

    @classmethod
    def parse(cls, spec: str) -> Fault:
        """Read a fault from its text.

        Raises:
            ValueError: the text is no fault; the message names the wrong part and the right form.
        """
        head, *rest = (part.strip().partition("=") for part in spec.split(","))
        kind, _, value = head
        fields: dict[str, Any] = {"kind": kind}
        if value and kind in _WITH_TEXT:
            fields["text"] = value
        elif value and kind in _WITH_NUMBER:
            fields["value"] = _number(spec, kind, value)
        elif value and kind in KINDS:
            raise ValueError(f"in fault {spec!r}: {kind} takes no value")
        for key, _, value in rest:
            if key not in _KEYS:
                raise ValueError(f"in fault {spec!r}: no key {key!r}; there are: {', '.join(_KEYS)}")
            fields[_KEYS[key]] = _number(spec, key, value)
        try:
            return cls(**fields)
        except ValueError as error:
            raise ValueError(f"in fault {spec!r}: {error}") from None

    def matches(self, call: Call) -> bool:
        """Whether the fault can hit a request of the call's kind."""
        match self.kind:
            case "no_lists" | "first_only" | "serial" | "reorder" | "sum_usage":
                return len(call.prompts) > 1
            case "no_stream_lists":
                return call.stream and len(call.prompts) > 1
            case "bad_prompt":
                return any(isinstance(each, str) and self.text in each for each in call.prompts)
        return True


def _number(spec: str, key: str, value: str) -> float:
    is_whole = key in _WHOLE
    if not (_WHOLE_NUMBER if is_whole else _NUMBER).fullmatch(value):
        raise ValueError(f"in fault {spec!r}: {key} takes a {'whole ' if is_whole else ''}number, got {value!r}")
    return int(value) if is_whole else float(value)


class FaultInjector:
    """Decides which request is hit by which fault.

    Args:
        faults: as texts or ``Fault``s, tried in order.
        seed: of the generators behind ``rate``.

    Raises:
        ValueError: a text is not a fault.
    """

    def __init__(self, faults: Iterable[str | Fault] = (), seed: int = 0) -> None:
        parsed = [Fault.parse(each) if isinstance(each, str) else each for each in faults]
        self.faults: Sequence[Fault] = tuple(parsed)
        self._rngs = [random.Random(f"{seed}/{i}/{each.kind}") for i, each in enumerate(parsed)]  # noqa: S311
        self._seen = [0] * len(parsed)
        self.hits: list[int] = [0] * len(parsed)

    def __repr__(self) -> str:
        return f"<FaultInjector {[each.kind for each in self.faults]} hits={self.hits}>"

    def choose(self, call: Call) -> tuple[float, Fault | None]:
        """Return the seconds by which a request is slowed, and the fault that hits it."""
        delay_s = 0.0
        chosen: Fault | None = None
        for i, fault in enumerate(self.faults):
            if (chosen is not None and fault.kind != "slow") or not fault.matches(call) or not self._hits(i, fault):
                continue
            if fault.kind == "slow":
                delay_s += fault.value
            else:
                chosen = fault
        return delay_s, chosen

    def _hits(self, i: int, fault: Fault) -> bool:
        self._seen[i] += 1
        if self._seen[i] <= fault.after or (fault.count is not None and self.hits[i] >= fault.count):
            return False
        if fault.rate < 1 and self._rngs[i].random() >= fault.rate:
            return False
        self.hits[i] += 1
        return True
