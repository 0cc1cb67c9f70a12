"""Settings of a client: presets, and the check of every argument where it is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from batchclient._core.settings import SchedulerSettings
from batchclient.errors import ConfigError

__all__ = ["PRESETS", "Preset", "Settings", "check_base_url", "make_settings"]

Preset = Literal["latency", "balanced", "throughput"]

PRESETS: dict[str, dict[str, Any]] = {
    # Each permit is granted as it comes free; lists form only where calls are made together.
    "latency": {"limit": 64, "max_list": 16, "linger_s": 0.0, "refill_s": 0.0, "refill_ratio": 0.0, "starvation_s": 1.0},
    # A hold of at most 0.1 s on a busy server buys lists of an eighth of the limit.
    "balanced": {
        "limit": 64, "max_list": 32, "linger_s": 0.001, "refill_s": 0.1, "refill_ratio": 0.125, "starvation_s": 5.0,
    },
    # Refilling a quarter of the limit at once made lists of 24 to 36 at the same throughput on a saturated vLLM; below
    # its knee a server loses the permits that wait, an eighth of the limit on average.
    "throughput": {
        "limit": 128, "max_list": 64, "linger_s": 0.005, "refill_s": 0.5, "refill_ratio": 0.25, "starvation_s": 30.0,
    },
}  # fmt: skip
"""What a preset sets; every entry can be given as an argument of its own. Times in seconds."""

# RFC 9110, sections 5.1 and 5.5, without obs-text: what h11 and httpx let through.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, strict=True)]


class Settings(BaseModel):
    """All settings of a client. See ``BatchClient`` for their meanings."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    base_url: tuple[str, ...]
    model: Annotated[str, Field(min_length=1)] | None = None
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    limit: Count
    max_list: Count
    linger_s: Seconds
    refill_s: Seconds
    refill_ratio: Annotated[float, Field(ge=0, le=1)]
    starvation_s: Seconds
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    max_queued: Count = 16_384
    when_full: Literal["wait", "raise"] = "wait"
    singles_above_tokens: Count = 256
    timeout_s: PositiveSeconds | None = None
    connect_timeout_s: PositiveSeconds = 5.0
    read_timeout_s: PositiveSeconds | None = 600.0
    max_response_bytes: Count = 64 * 1024 * 1024
    max_model_len: Count | None = None
    count_tokens: Callable[[str], int] | None = None
    http_backend: Literal["httpx", "aiohttp"] = "httpx"
    trust_env: bool = False

    @field_validator("base_url", mode="before")
    @classmethod
    def _check_urls(cls, value: object) -> tuple[str, ...]:
        urls = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
        if not urls:
            raise ValueError("a URL such as http://localhost:8000/v1, or a list of them")
        return tuple(_check_url(url) for url in urls)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r:.40} is no name of a header")
            if not _HEADER_VALUE.fullmatch(text):
                raise ValueError(
                    f"the value of the header {name!r:.40} is printable ASCII without spaces around it; a line break in it"
                    " would start another header"
                )
        # In one case: two spellings of one name would be sent as two headers.
        return {name.lower(): text for name, text in value.items()}

    def scheduler(self, dialect_max_list: int, length_reach: int | None) -> SchedulerSettings:
        """The part of the settings that the core works with."""
        return SchedulerSettings(
            linger_s=self.linger_s,
            refill_s=self.refill_s,
            refill_ratio=self.refill_ratio,
            starvation_s=self.starvation_s,
            max_list=min(self.max_list, dialect_max_list),
            max_queued=self.max_queued,
            raise_when_full=self.when_full == "raise",
            singles_above_tokens=self.singles_above_tokens,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            length_reach=length_reach,
        )


def _check_url(url: object) -> str:
    if not isinstance(url, str):
        raise ValueError(f"a URL is a string, not {type(url).__name__}")
    url = url.strip()
    # First, so that no password is shown by the others.
    if "@" in url.partition("?")[0]:
        raise ValueError("a URL holds no user or password here; give api_key or headers")
    if any(ord(character) < 33 or ord(character) == 127 for character in url):
        raise ValueError("a URL holds no spaces or line breaks")
    parts = urlsplit(url)
    shown = url.partition("?")[0]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{shown!r:.80} is no URL such as http://localhost:8000/v1")
    try:
        parts.port  # noqa: B018  # it is the look that raises
    except ValueError:
        raise ValueError(f"{shown!r:.80} has no port between 0 and 65535") from None
    if parts.fragment:
        raise ValueError(f"{shown!r:.80} has a #fragment, which is never sent")
    path, question, query = url.partition("?")
    return path.rstrip("/") + question + query


def check_base_url(base_url: object) -> str:
    """Return a server's base URL in the form the client keeps it in.

    Raises:
        ConfigError: it is none.
    """
    try:
        return _check_url(base_url)
    except ValueError as error:
        raise ConfigError(f"base_url: {error}", field="base_url") from None


def make_settings(preset: str, arguments: Mapping[str, Any]) -> Settings:
    """Combine a preset with the arguments given, and check them.

    Raises:
        ConfigError: an argument is wrong; its name is in ``field``.
    """
    chosen = PRESETS.get(preset) if isinstance(preset, str) else None
    if chosen is None:
        raise ConfigError(f"preset is one of {', '.join(PRESETS)}, not {preset!r:.40}", field="preset")
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return Settings(**{**chosen, **given})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        known = ", ".join(sorted(Settings.model_fields))
        hint = f"; there are: {known}" if first["type"] == "extra_forbidden" else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{field}: {message}{hint}", field=field) from None
