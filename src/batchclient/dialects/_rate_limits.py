"""Gateways' rate limits, as told by a reply's headers.

- OpenAI's ``x-ratelimit-remaining-requests`` and ``x-ratelimit-reset-requests`` (and ``-tokens``),
  whose resets are written ``6m0s``, ``1s``, ``20ms``.
- The IETF's ``RateLimit`` with ``RateLimit-Policy`` in its forms to date: ``"default";r=0;t=5``,
  ``limit=10, remaining=0, reset=5``, and ``RateLimit-Remaining`` with ``RateLimit-Reset``.

Any other value is ignored.

Sources: OpenAI's guide to rate limits; draft-ietf-httpapi-ratelimit-headers, 05, 07 and 10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from batchclient._core.messages import RateWindow

__all__ = ["read_rate_limits"]

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_DURATION = re.compile(rf"(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?(?:({_NUMBER})ms)?")
_PLAIN = re.compile(_NUMBER)
_COUNT = re.compile(r"[0-9]{1,18}")
_ITEM = re.compile(r'"([^"]{0,128})"((?:\s*;\s*[a-z]+=[^,;\s]{1,64})*)')
_MEMBER = re.compile(r"\b([a-z]+)=([0-9]{1,15})(?![0-9.])")
_LONGEST_VALUE = 1024
_LONGEST_RESET_S = 1e8
"""Larger resets are Unix times."""


def read_rate_limits(headers: Mapping[str, str]) -> tuple[RateWindow, ...]:
    """Return the rest of each limit that the headers tell. Names must be in lower case."""
    # One look at the names: nearly no self-hosted server sends such headers.
    if not any("ratelimit" in name for name in headers):
        return ()
    windows = [
        _window(headers.get(f"x-ratelimit-remaining-{what}"), headers.get(f"x-ratelimit-reset-{what}"))
        for what in ("requests", "tokens")
    ]
    windows.append(_window(headers.get("ratelimit-remaining"), headers.get("ratelimit-reset")))
    windows += _structured(headers.get("ratelimit"), headers.get("ratelimit-policy"))
    return tuple(window for window in windows if window is not None)


def _window(remaining: str | None, reset: str | None) -> RateWindow | None:
    if remaining is None or reset is None or not _COUNT.fullmatch(remaining.strip()):
        return None
    reset_s = _duration_s(reset.strip())
    return None if reset_s is None else RateWindow(int(remaining), reset_s)


def _duration_s(text: str) -> float | None:
    if len(text) > _LONGEST_VALUE or not text:
        return None
    if _PLAIN.fullmatch(text):
        seconds = float(text)
    else:
        match = _DURATION.fullmatch(text)
        if match is None:
            return None
        hours, minutes, whole, thousandths = (float(part) if part else 0.0 for part in match.groups())
        seconds = 3600 * hours + 60 * minutes + whole + thousandths / 1000
    return seconds if seconds <= _LONGEST_RESET_S else None


def _structured(limit: str | None, policy: str | None) -> list[RateWindow | None]:
    if limit is None or len(limit) > _LONGEST_VALUE:
        return []
    items = _ITEM.findall(limit)
    if not items:
        members = dict(_MEMBER.findall(limit))
        return [_window(members.get("remaining"), members.get("reset"))]
    lengths = {}
    if policy is not None and len(policy) <= _LONGEST_VALUE:
        lengths = {name: dict(_MEMBER.findall(members)).get("w") for name, members in _ITEM.findall(policy)}
    windows = []
    for name, text in items:
        members = dict(_MEMBER.findall(text))
        # Without a reset the window's length bounds it.
        windows.append(_window(members.get("r"), members.get("t", lengths.get(name))))
    return windows
