"""Wrong usage of ``work``: refused in a line before Redis is asked, and no secret is shown."""

import pytest
from tests import bounds

pytest.importorskip("redis", reason="needs the extra redis")

VARIABLES = ("BATCH_SIZE", "BATCH_TIMEOUT_MS", "BATCHCLIENT_BASE_URL", "BATCHCLIENT_STREAM", "BATCHCLIENT_GROUP")


@pytest.fixture(autouse=True)
def bounded():
    """Fail a worker that begins."""
    with bounds.bounded(30.0, 60.0):
        yield


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--lease", "9"], {}, "--lease: at least 10 seconds, not 9"),
        ([], {"BATCH_SIZE": "0"}, "BATCH_SIZE: a whole number of at least 1, not '0'"),
        ([], {"BATCH_TIMEOUT_MS": "-1"}, "BATCH_TIMEOUT_MS: milliseconds from 0 to 3,600,000, not '-1'"),
        ([], {"VLLM_URL": "nowhere"}, "VLLM_URL: "),
        (["--redis", "http://:secret@host"], {}, "--redis: a URL that begins with redis://, rediss:// or unix://"),
        ([], {"REDIS_URL": "redis://:secret@host:port"}, "--redis: redis-py cannot use this URL"),
        (["--results", "somewhere"], {}, "--results: keys, stream:NAME or none, not 'somewhere'"),
        (["--dead", "inference_queue"], {}, "--dead: dead letters go into another stream than messages"),
        (["--endpoints-shard", "0/2"], {}, "--endpoints-shard: 2 workers share 1 server"),
        (["--concurrency", "0"], {}, "--concurrency: a whole number of at least 1, or auto, not '0'"),
        (["--max-batch-size", "0"], {}, "--max-batch-size: "),
        ([], {"BATCH_SIZE": "9" * 12}, "BATCH_SIZE: a whole number of at least 1, not '999"),
        ([], {"BATCH_TIMEOUT_MS": "1e300"}, "BATCH_TIMEOUT_MS: milliseconds from 0"),
        ([], {"BATCH_TIMEOUT_MS": "nan"}, "BATCH_TIMEOUT_MS: milliseconds from 0"),
        (["--endpoints-shard", "0/1"], {"VLLM_URL": "nowhere:x"}, "VLLM_URL: "),
        (["--redis", "redis://:secret@[::1"], {}, "--redis: a URL that begins with redis://"),
        (["--redis", "redis://:secret@host/0?no_such_option=1"], {}, "--redis: redis-py cannot use this URL"),
        (["--redis", "redis://:secret@host/0?socket_timeout=x"], {}, "--redis: redis-py cannot use this URL"),
        (["--stream", "result:x"], {}, "--stream: 'result:x' may be the key of a result"),
    ],
)
def test_wrong_usage_is_refused(cli, monkeypatch, arguments, variables, said):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"REDIS_URL": "unix:///absent", "VLLM_URL": "http://127.0.0.1:9"} | variables).items():
        monkeypatch.setenv(name, value)
    refused = cli("work", *arguments)
    # The line that the work has begun comes before what the integration refuses.
    lines = [line for line in refused.stderr.splitlines() if not line.startswith("working on ")]
    assert refused.exit_code == 2 and len(lines) == 1 and lines[0].startswith(f"Error: {said}")
    assert "secret" not in refused.output


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:6379/3?x=secret", "redis://host:6379/3"),
        ("rediss://:12/secret@host", "rediss://:12"),
        ("unix://user:secret@/run/redis.sock?db=1", "unix:///run/redis.sock"),
    ],
)
def test_no_password_is_shown(url, shown):
    from batchclient.cli._redis import shown_redis

    assert shown_redis(url) == shown
