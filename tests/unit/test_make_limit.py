"""From settings to the limit of an endpoint: where it begins."""

from batchclient import AdaptiveLimit
from batchclient._client.make_limit import make_limit
from batchclient._settings import make_settings

URL = "http://localhost:8000/v1"


def test_where_a_limit_begins():
    for arguments, expected in [
        ({}, 256),
        ({"preset": "throughput"}, 256),
        ({"preset": "latency"}, 256),
        ({"limit": AdaptiveLimit(p95_latency_s=5.0)}, 64),
        ({"limit": AdaptiveLimit(time_to_first_token_s=0.5)}, 64),
        ({"limit": AdaptiveLimit(max=100)}, 100),
        ({"limit": AdaptiveLimit(max=10)}, 10),
        ({"limit": AdaptiveLimit(start=10)}, 10),
        ({"limit": AdaptiveLimit(guest=True)}, 16),
        ({"limit": AdaptiveLimit(guest=True, start=10)}, 10),
        ({"limit": AdaptiveLimit(guest=True, start=64)}, 64),
        ({"limit": AdaptiveLimit(guest=True, start=64, max=100)}, 64),
        ({"limit": AdaptiveLimit(guest=True, max=10)}, 10),
        ({"preset": "latency", "limit": AdaptiveLimit(start=400)}, 400),
        ({"limit": 7}, 7),
    ]:
        preset = arguments.pop("preset", "balanced")
        assert make_limit(make_settings(preset, {"base_url": URL, **arguments})).limit == expected
