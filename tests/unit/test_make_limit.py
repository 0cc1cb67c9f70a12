"""From settings to the limit of an endpoint: where it begins, and up to where it doubles."""

import pytest

from batchclient import AdaptiveLimit, BatchClient
from batchclient._client.make_limit import make_limit
from batchclient._client.settings import make_settings

URL = "http://localhost:8000/v1"


def made(preset="balanced", *, engine=False, **arguments):
    """Where the limit begins, and where first tokens open it to."""
    limit = make_limit(make_settings(preset, {"base_url": URL, **arguments}), engine=engine)
    start = limit.limit
    while limit.opening:
        limit.on_begun(limit.limit, 0.0)
    return start, limit.limit


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (64, 256)),
        ({"preset": "throughput"}, (64, 256)),
        ({"preset": "latency"}, (32, 64)),
        ({"limit": AdaptiveLimit(p95_latency_s=5.0)}, (32, 64)),
        ({"limit": AdaptiveLimit(time_to_first_token_s=0.5)}, (32, 64)),
        ({"limit": AdaptiveLimit(max=100)}, (64, 100)),
        ({"limit": AdaptiveLimit(max=10)}, (10, 10)),
        ({"limit": AdaptiveLimit(start=10)}, (10, 10)),
        ({"preset": "latency", "limit": AdaptiveLimit(start=400)}, (400, 400)),
        ({"limit": 7}, (7, 7)),
    ],
)
def test_where_a_limit_begins_and_how_far_it_opens(arguments, expected):
    assert made(**arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, 256),
        ({"preset": "latency"}, 64),
        ({"limit": AdaptiveLimit(time_to_first_token_s=0.5)}, 64),
        ({"limit": AdaptiveLimit(max=100)}, 100),
        ({"limit": AdaptiveLimit(start=10)}, 10),
        ({"limit": 7}, 7),
    ],
)
def test_a_known_engine_begins_where_others_open_to_unless_the_caller_has_said_otherwise(arguments, expected):
    assert made(engine=True, **arguments) == (expected, expected)


@pytest.mark.parametrize(("dialect", "start"), [("vllm", 256), ("trtllm", 256), ("tgi", 64), ("openai", 64)])
def test_a_dialect_that_is_named_says_which_server_it_is(dialect, start):
    assert BatchClient(URL, model="m", dialect=dialect).statistics().endpoints[0].limit == start
