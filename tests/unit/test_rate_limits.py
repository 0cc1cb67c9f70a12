"""Rate-limit headers of gateways."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import RateWindow
from batchclient.dialects._rate_limits import read_rate_limits


def openai(remaining, reset, what="requests"):
    return {f"x-ratelimit-remaining-{what}": remaining, f"x-ratelimit-reset-{what}": reset}


def test_resets_as_openai_writes_them():
    for text, seconds in [
        ("6m0s", 360.0),
        ("1s", 1.0),
        ("20ms", 0.02),
        ("0s", 0.0),
        ("1h2m3s", 3723.0),
        ("2m59.56s", 179.56),
        ("7.66s", 7.66),
        ("23h59m", 86_340.0),
        ("1m", 60.0),
        ("1s20ms", 1.02),
        ("12", 12.0),
        ("0.5", 0.5),
        (" 5s ", 5.0),
    ]:
        (window,) = read_rate_limits(openai("0", text))
        assert window == RateWindow(0, pytest.approx(seconds))


def test_resets_that_are_not_understood_are_ignored():
    for text in [
        "",
        "soon",
        "-1s",
        "1d",
        "s",
        "ms",
        "1 s",
        "nan",
        "inf",
        "1e3",
        "1700000000",
        "2026-01-01T00:00:00Z",
        "٣s",
        "9" * 5000,
    ]:
        assert read_rate_limits(openai("0", text)) == ()


def test_counts_that_are_not_understood_are_ignored():
    for text in ["", "-1", "1.5", "none", "0x0", "9" * 40, "٣"]:
        assert read_rate_limits(openai(text, "1s")) == ()


def test_requests_and_tokens_are_read_each_for_itself():
    headers = openai("59", "1s") | openai("0", "6m0s", "tokens") | {"x-ratelimit-limit-requests": "60"}
    assert read_rate_limits(headers) == (RateWindow(59, 1.0), RateWindow(0, 360.0))
    assert read_rate_limits({"x-ratelimit-remaining-requests": "0"}) == ()


def test_headers_of_other_kinds_are_no_rate_limits():
    for headers in (
        {"content-type": "application/json"},
        {"ratelimit": '"default";r=0;t=30'},
        {"ratelimit-remaining": "0", "ratelimit-reset": "5"},
    ):
        assert read_rate_limits(headers) == ()


NAMES = st.sampled_from(
    [f"x-ratelimit-{word}-{what}" for word in ("limit", "remaining", "reset") for what in ("requests", "tokens")]
)
VALUES = st.text(max_size=60) | st.text(alphabet='0123456789hms.,;="rtqw -', max_size=60)


@given(st.dictionaries(NAMES, VALUES))
def test_garbage_is_ignored(headers):
    for window in read_rate_limits(headers):
        assert window.remaining >= 0
        assert math.isfinite(window.reset_s)
        assert window.reset_s >= 0


@given(st.integers(0, 10**6), st.integers(0, 100), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_what_openai_writes_is_read_back(remaining, hours, minutes, seconds, thousandths):
    (window,) = read_rate_limits(openai(str(remaining), f"{hours}h{minutes}m{seconds}s{thousandths}ms"))
    assert window.remaining == remaining
    assert window.reset_s == pytest.approx(3600 * hours + 60 * minutes + seconds + thousandths / 1000)
