"""Blocking calls where a test has frozen time with freezegun: the client's own thread goes by a clock that runs on."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from freezegun import freeze_time

from batchclient import Backoff, DeadlineExceeded
from tests.shell.scripted import ScriptedTransport, answer_to, error
from tests.shell.test_sync import make_sync


def ask(client):
    """What waits for time on its way: company, a retry's pause."""
    with ThreadPoolExecutor(4) as pool:
        return [answer.text for answer in pool.map(client.complete, "abcd")]


@pytest.mark.parametrize("day", ["2001-01-01", "2090-01-01"])
def test_calls_are_answered_in_a_client_made_meanwhile(day):
    with freeze_time(day), make_sync(ScriptedTransport(error(503)), retry=Backoff(base_s=0.01)) as client:
        assert ask(client) == [answer_to(each) for each in "abcd"]
        assert [each.text for each in client.batch_map(["e", "f"], str)] == [answer_to("e"), answer_to("f")]


@pytest.mark.parametrize("day", ["2001-01-01", "2090-01-01"])
def test_calls_are_answered_in_a_client_that_was_there_before(day):
    with make_sync(ScriptedTransport()) as client:
        client.complete("before")
        with freeze_time(day, tick=True):
            assert ask(client) == [answer_to(each) for each in "abcd"]
        with freeze_time(day):
            assert ask(client) == [answer_to(each) for each in "abcd"]
        assert ask(client) == [answer_to(each) for each in "abcd"]


def test_a_deadline_passes():
    with freeze_time("2001-01-01"), make_sync(ScriptedTransport(held=True)) as client:
        with pytest.raises(DeadlineExceeded):
            client.complete("p", timeout_s=0.05)
