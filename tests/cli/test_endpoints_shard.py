"""``batchclient map --endpoints-shard``: each of several commands has servers of its own."""

from contextlib import ExitStack

import pytest

from batchclient.partition import endpoints_shard
from batchclient.simulator import EmbeddedServer

from .conftest import read_rows, write_rows


def test_the_commands_of_all_parts_use_every_server_and_share_none(cli, tmp_path):
    """With --shard of the same numbers: each has its rows, and its servers."""
    source = write_rows(tmp_path / "in.jsonl", [{"id": str(number), "text": f"t {number}"} for number in range(200)])
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer("instant", model="m")) for _ in range(4)]
        urls = [server.base_url for server in servers]
        every = [option for url in urls for option in ("--base-url", url)]
        for part in range(2):
            before = [server.prompts for server in servers]
            command = ["map", source, *every, "--model", "m", "--prompt", "{text}", "--concurrency", 4]
            command += ["--shard", f"{part}/2", "--endpoints-shard", f"{part}/2", "-o", tmp_path / "out-{shard}.jsonl"]
            result = cli(*command)
            assert result.exit_code == 0, result.output
            used = {server.base_url for server, was in zip(servers, before, strict=True) if server.prompts > was}
            assert used == set(endpoints_shard(urls, (part, 2)))
        assert all(server.prompts for server in servers)
    rows = [row["id"] for part in range(2) for row in read_rows(tmp_path / f"out-{part}.jsonl")]
    assert sorted(rows, key=int) == [str(number) for number in range(200)]


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        ("2/2", "--endpoints-shard: parts count from 0: 0/2 to 1/2, not 2/2"),
        ("first", "--endpoints-shard: i/n, such as 0/8 for the first of eight, not 'first'"),
        (
            "0/3",
            "--endpoints-shard: 3 workers share 2 servers: give each worker all servers, and a part of what a server"
            " takes as its limit",
        ),
    ],
)
def test_what_is_no_part_is_refused_before_anything_is_sent(cli, tmp_path, shard, said):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "t"}])
    servers = ["--base-url", "http://127.0.0.1:1/v1", "--base-url", "http://127.0.0.1:2/v1"]
    result = cli("map", source, *servers, "--prompt", "{text}", "--endpoints-shard", shard)
    assert result.exit_code == 2
    assert f"Error: {said}\n" in result.stderr


def test_a_wrong_server_of_the_environment_is_told_by_its_variable(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHCLIENT_BASE_URL", "http://a/v1 nowhere")
    source = write_rows(tmp_path / "in.jsonl", [{"text": "t"}])
    result = cli("map", source, "--prompt", "{text}", "--endpoints-shard", "0/2")
    assert result.exit_code == 2
    assert "BATCHCLIENT_BASE_URL" in result.stderr
    assert "URL number 2" in result.stderr
