"""examples/follow_dns.py: a name's servers come and go; trouble with the name removes none."""

import asyncio
import importlib.util
import socket
from pathlib import Path

import pytest

from batchclient import ConfigError
from batchclient.simulator import EmbeddedServer

_spec = importlib.util.spec_from_file_location("follow_dns", Path(__file__).parents[2] / "examples/follow_dns.py")
assert _spec is not None
assert _spec.loader is not None
follow_dns = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(follow_dns)


class Client:
    """Notes which servers are added and removed."""

    def __init__(self):
        self.changes = []

    def add_endpoint(self, url):
        self.changes.append(f"+{url}")

    async def remove_endpoint(self, url):
        self.changes.append(f"-{url}")


class Ended(Exception):
    """No more answers."""


def changes(*answers):
    """The changes that answers of the name bring about, ``{"a"}`` at first."""
    coming = iter(answers)

    async def resolve():
        answer = next(coming, Ended())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main():
        client = Client()
        with pytest.raises(ExceptionGroup) as ended:
            await follow_dns.follow(client, {"a"}, resolve, every_s=0)
        assert ended.group_contains(Ended)
        return client.changes

    return asyncio.run(main())


def test_servers_come_and_go():
    assert changes({"a", "b"}, {"b"}, {"b"}) == ["+b", "-a"]


@pytest.mark.parametrize(
    "trouble",
    [socket.gaierror(socket.EAI_NONAME, "no such name"), OSError("no more files"), set()],
    ids=["no pod", "no file", "an empty answer"],
)
def test_the_servers_stay_while_the_name_has_no_answer(trouble):
    assert changes(trouble, trouble, {"a", "b"}) == ["+b"]


def test_a_server_that_comes_back_is_added_again():
    assert changes({"a", "b"}, {"a"}, {"a", "b"}) == ["+b", "-b", "+b"]


def test_an_address_of_ipv6_is_written_as_in_a_url(monkeypatch):
    async def main():
        async def resolve(host, port, **arguments):
            return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", port, 0, 0))] * 2

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        return await follow_dns.urls_of("vllm-pods", 8000)

    assert asyncio.run(main()) == {"http://[fd00::7]:8000/v1"}


def test_an_error_of_the_loop_ends_the_program():
    """Unseen, the client would go on with the servers of that moment."""
    with EmbeddedServer("instant", model="m") as server:
        answers = iter([{server.base_url}])

        async def resolve():
            return next(answers, {"nowhere"})

        with pytest.raises(ExceptionGroup) as ended:
            asyncio.run(follow_dns.main(resolve, "m", 0.01))
        assert ended.group_contains(ConfigError)
