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
        (["--lease", "9"], {}, "Invalid value for '--lease': "),
        ([], {"BATCH_SIZE": "0"}, "Invalid value for '--max-batch-size'"),
        ([], {"BATCH_TIMEOUT_MS": "-1"}, "BATCH_TIMEOUT_MS: milliseconds from 0 to 3,600,000, not -1"),
        (["--endpoints-shard", "0/1"], {"VLLM_URL": "nowhere:x"}, "VLLM_URL: "),
        (["--redis", "http://:secret@host"], {}, "--redis (REDIS_URL): a URL that begins with redis://"),
        ([], {"REDIS_URL": "redis://:secret@host:port"}, "--redis (REDIS_URL): redis-py cannot use this URL"),
        (["--redis", "redis://:secret@host/0?no_such_option=1"], {}, "--redis (REDIS_URL): redis-py cannot use this"),
        (["--results", "somewhere"], {}, "--results: keys, stream:NAME or none, not 'somewhere'"),
        (["--dead", "inference_queue"], {}, "--dead: dead letters go into another stream than messages"),
        (["--stream", "result:x"], {}, "--stream: 'result:x' may be the key of a result"),
    ],
)
def test_wrong_usage_is_refused(cli, monkeypatch, arguments, variables, said):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"REDIS_URL": "unix:///absent", "VLLM_URL": "http://127.0.0.1:9"} | variables).items():
        monkeypatch.setenv(name, value)
    refused = cli("work", *arguments)
    assert refused.exit_code == 2 and refused.stderr.splitlines()[-1].startswith(f"Error: {said}")
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
