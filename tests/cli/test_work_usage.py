"""Wrong usage of ``work``: refused in a line before Redis is asked, and no secret is shown. And what is its default."""

import pytest

from batchclient import BatchClient
from tests import bounds

from batchclient import ConfigError

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


def test_a_worker_has_the_settings_of_the_page_where_none_is_given(cli, monkeypatch):
    made = []

    def refusing(client, connection, **arguments):
        made.append((client, arguments))
        raise ConfigError("seen")

    monkeypatch.setattr("batchclient.integrations.redis.Worker", refusing)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    asked = {}

    class Seen(BatchClient):
        def __init__(self, **given):
            asked.update(given)
            super().__init__(**given)

    monkeypatch.setattr("batchclient.cli.work.BatchClient", Seen)
    cli("work", "--redis", "unix:///absent", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    [(_, given)] = made
    assert [given[name] for name in ("result_ttl_s", "lease_s", "max_deliveries", "grace_s")] == [86_400, 60, 5, 25]
    assert (given["stream"], given["group"], given["results"]) == ("inference_queue", "batchclient", "keys")
    batching = asked["batching"]
    assert (batching.max_size, batching.linger_s) == (32, 0.1)


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
