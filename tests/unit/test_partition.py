"""Servers for one of several workers: disjoint, all taken, and few that move."""

import os
import subprocess
import sys

import pytest

from batchclient import BatchClient, ConfigError, Server
from batchclient.partition import endpoints_shard


def urls(count, name="vllm"):
    return [f"http://{name}-{number}.pods:8000/v1" for number in range(count)]


def owners(servers, parts):
    """The worker of each server."""
    found = [(server, part) for part in range(parts) for server in endpoints_shard(servers, (part, parts))]
    assert len(dict(found)) == len(found), "two workers have one server"
    return dict(found)


def test_the_shares_are_disjoint_of_one_size_and_all_servers():
    for count, parts in [(1, 1), (2, 2), (8, 4), (9, 4), (7, 7), (50, 5), (50, 49), (64, 3)]:
        for name in ("a", "b", "c"):
            servers = urls(count, name)
            shares = [endpoints_shard(servers, f"{part}/{parts}") for part in range(parts)]
            assert sorted(server for share in shares for server in share) == sorted(servers)
            sizes = sorted(map(len, shares))
            assert sizes[0] >= 1
            assert sizes[-1] - sizes[0] <= 1


def test_every_order_and_spelling_gives_the_same_shares():
    servers = urls(8)
    spelt = {f" {server.upper().replace('/V1', '/v1')}/ ": server for server in reversed(servers)}
    for part in range(4):
        share = endpoints_shard(servers, (part, 4))
        again = endpoints_shard(list(spelt), (part, 4))
        assert {spelt[server] for server in again} == set(share)


def test_a_port_that_goes_without_saying_changes_no_share():
    for scheme, port in (("http", 80), ("https", 443)):
        servers = [f"{scheme}://server-{number}/v1" for number in range(8)]
        spelt = {server.replace("/v1", f":{port}/v1"): server for server in servers}
        for part in range(4):
            again = endpoints_shard(list(spelt), (part, 4))
            assert {spelt[server] for server in again} == set(endpoints_shard(servers, (part, 4)))


def test_another_process_finds_the_same_shares():
    """The hash of Python's strings differs from process to process."""
    code = f"from batchclient.partition import endpoints_shard; print(endpoints_shard({urls(50)!r}, '2/5'))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(endpoints_shard(urls(50), "2/5"))


@pytest.mark.parametrize("count", [8, 50])
def test_a_worker_that_joins_moves_its_own_servers_alone(count):
    for parts in range(1, 8):
        before, after = owners(urls(count), parts), owners(urls(count), parts + 1)
        moved = {server for server in before if before[server] != after[server]}
        assert moved == {server for server, part in after.items() if part == parts}
        assert len(moved) == count // (parts + 1)


def test_a_server_that_leaves_moves_few_others():
    """Each in turn: with 50 servers and four workers, 37 of the others would move if places counted."""
    before = owners(urls(50), 4)
    moves = []
    for gone in before:
        after = owners([server for server in before if server != gone], 4)
        moves.append(sum(before[server] != part for server, part in after.items()))
    assert sum(moves) / len(moves) <= 4
    assert max(moves) <= 8


def test_a_servers_own_key_stays_with_it():
    servers = [Server(url, api_key=f"key-{number}") for number, url in enumerate(urls(6))]
    shares = [endpoints_shard(servers, (part, 2)) for part in range(2)]
    assert all(one in servers for share in shares for one in share)
    BatchClient(shares[0])


def test_one_url_is_a_list_of_one():
    assert endpoints_shard("http://a/v1", "0/1") == ["http://a/v1"]


def test_what_is_no_part_is_refused_by_the_arguments_name():
    for shard in ["4/4", "1", "-1/2", "a/b", (1, 0), (True, 2), 3, None]:
        with pytest.raises(ConfigError, match=r"^endpoints_shard: ") as refused:
            endpoints_shard(urls(8), shard)
        assert refused.value.field == "endpoints_shard"


def test_more_workers_than_servers_are_refused_with_what_to_do():
    with pytest.raises(ConfigError) as refused:
        endpoints_shard(urls(3), "0/4")
    assert refused.value.field == "endpoints_shard"
    assert "4 workers share 3 servers" in str(refused.value)
    assert "a part of what a server takes as its limit" in str(refused.value)


def test_wrong_servers_are_refused_as_by_the_client():
    for wrong in [[], ["no url"], ["http://a/v1", "http://a/v1/"], ["http://a/v1", "http://A:80/v1"], None, 3]:
        with pytest.raises(ConfigError) as ours:
            endpoints_shard(wrong, "0/1")
        with pytest.raises(ConfigError) as theirs:
            BatchClient(wrong)
        assert str(ours.value) == str(theirs.value)
