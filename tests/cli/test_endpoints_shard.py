"""``batchclient map --endpoints-shard``: each of several commands has servers of its own."""

from contextlib import ExitStack


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


def test_what_is_no_part_is_refused_before_anything_is_sent(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "t"}])
    servers = ["--base-url", "http://127.0.0.1:1/v1", "--base-url", "http://127.0.0.1:2/v1"]
    for shard, said in (("2/2", "parts count from 0: 0/2 to 1/2, not 2/2\n"), ("0/3", "3 workers share 2 servers: ")):
        result = cli("map", source, *servers, "--prompt", "{text}", "--endpoints-shard", shard)
        assert result.exit_code == 2
        assert f"Error: --endpoints-shard: {said}" in result.stderr
