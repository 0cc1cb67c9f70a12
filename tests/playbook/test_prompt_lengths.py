"""How many tokens a text is thought to have: by what servers counted of others like it."""

import json
from itertools import count

import pytest

from batchclient.types import Usage
from tests.core import Kind, Request, Woke
from tests.playbook.playbook import Playbook, answered, shape

COMMON = shape(model="m")
TEXT = "x" * 398
"""400 bytes on the wire, with the quotes: 101 tokens before anything was counted."""


class Server:
    def __init__(self):
        self.play, self._names = Playbook(), count()

    def expects(self, prompt, of=COMMON, *, counts=None, times=1, **usage):
        """How many tokens the last of some calls was thought to have; each was answered with what the server counts."""
        for _ in range(times):
            wire = json.dumps(prompt, ensure_ascii=False).encode()
            call = Request(of, wire, prompt_tokens=len(wire) // 4 + 1, waiter=f"c{next(self._names)}")
            self.play.submit(call) >> Woke()
            event = answered(call)
            event.answers[0][1].usage = None if counts is None else Usage(counts, 1, **usage)
            self.play >> event
        return call.prompt_tokens


def test_what_was_counted_is_expected_of_texts_of_the_same_model_kind_and_script():
    server = Server()
    server.expects(TEXT, counts=200, times=100)
    assert server.expects("x" * 3998) == pytest.approx(2000, rel=0.02)
    assert server.expects("x" * 3998, shape(model="another")) == 1001
    assert server.expects("x" * 3998, shape(model="m", kind=Kind.CHAT)) == 1001
    assert server.expects("é" + "x" * 3996) == 1001


def test_a_change_of_texts_is_followed_within_some_tens_of_thousands_of_tokens():
    server = Server()
    server.expects(TEXT * 100, counts=10_000, times=10)
    server.expects(TEXT * 100, counts=30_000, times=6)
    assert server.expects(TEXT) == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize(
    ("counts", "usage", "least", "most"),
    [
        (None, {}, 251, 251),
        (500, {"prompt_tokens_estimated": True}, 251, 251),
        (0, {}, 1, 251),
        (1, {}, 1, 251),
        # An image in a conversation, or a prompt that the server cut, says nothing of texts.
        (31, {}, 251, 251),
        (10**12, {}, 251, 2001),
    ],
)
def test_counts_that_cannot_be_and_estimates_do_no_harm(counts, usage, least, most):
    server = Server()
    server.expects("x" * 998, counts=counts, times=100, **usage)
    assert least <= server.expects("x" * 998) <= most


def test_token_ids_are_counted_not_estimated_and_teach_nothing_of_texts():
    server, ids = Server(), shape(model="m", counted=True)
    wire_of_400 = [1111] * 66
    assert server.expects(wire_of_400, ids, counts=400, times=100) == 100
    assert server.expects(TEXT) == 101
    server.expects(TEXT, counts=200, times=100)
    assert server.expects(wire_of_400, ids) == 100
