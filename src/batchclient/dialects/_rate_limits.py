"""A gateway's rate limits, as OpenAI's headers tell them: ``x-ratelimit-remaining-requests`` and
``x-ratelimit-reset-requests`` (and ``-tokens``), whose resets are written ``6m0s``, ``1s``,
``20ms``. Any other value is ignored.

Source: OpenAI's guide to rate limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from batchclient._core.messages import RateWindow

__all__ = ["read_rate_limits"]

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_RESET = re.compile(rf"(?=.)(?:({_NUMBER})|(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?(?:({_NUMBER})ms)?)")
_COUNT = re.compile(r"[0-9]{1,18}")
_LIMITS = [(f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}") for what in ("requests", "tokens")]
_LONGEST_RESET_S = 1e8
"""Larger resets are Unix times."""


def read_rate_limits(headers: Mapping[str, str]) -> tuple[RateWindow, ...]:
    """Return the rest of each limit that the headers tell. Names must be in lower case."""
    windows = []
    for left, until in _LIMITS:
        if left not in headers or until not in headers:
            continue
        count, reset = _COUNT.fullmatch(headers[left].strip()), _RESET.fullmatch(headers[until].strip())
        if count is None or reset is None:
            continue
        plain, hours, minutes, seconds, thousandths = (float(part or 0) for part in reset.groups())
        reset_s = plain + 3600 * hours + 60 * minutes + seconds + thousandths / 1000
        if reset_s <= _LONGEST_RESET_S:
            windows.append(RateWindow(int(count[0]), reset_s))
    return tuple(windows)
