"""A client that runs for months does not grow: what is remembered of calls, models and prompts is bounded."""

import pytest

from batchclient.errors import BadRequest, NotFound
from tests.core import FailureKind, Request, SendBatch, Submitted, Woke
from tests.inspection import held_bytes
from tests.playbook.playbook import Playbook, answered, failed, shape

COMMON = shape()
REFUSED = {
    "refused models": {"kind": FailureKind.REFUSED, "error": NotFound, "status": 404},
    "refused shapes": {"kind": FailureKind.UNSUPPORTED, "error": BadRequest},
}


@pytest.mark.long
@pytest.mark.parametrize("new", ["models", "prompts", *REFUSED])
def test_calls_of_which_each_has_something_new_do_not_pile_up(new):
    """The first 5,000 fill what there is, and the next 5,000 find it full."""
    play = Playbook(limit=[4, 4] if new == "refused shapes" else 4, max_size=1)
    core, size = play.scheduler, []
    for number in range(10_000):
        of = COMMON if new == "prompts" else shape(model=f"m{number}")
        text = b"x" * 17_000 if new == "prompts" else b""
        call = Request(of, b'"%05d%s"' % (number, text), prompt_tokens=1, deadline=play.now + 100.0)
        for at_once in (Submitted(call), Woke()):
            core.handle(at_once, play.now)
        sent = [command.batch for command in core.commands() if isinstance(command, SendBatch)]
        while sent:
            play.now += 1.0
            core.handle(failed(call, **REFUSED[new]) if new in REFUSED else answered(call), play.now)
            sent = [command.batch for command in core.commands() if isinstance(command, SendBatch)]
        if number % 5_000 == 4_999:
            size.append(held_bytes(core))
    assert size[1] < 1.25 * size[0]
