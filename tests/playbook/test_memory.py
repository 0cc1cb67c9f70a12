"""A client that runs for months does not grow: what is remembered of calls, models and prompts is bounded."""

import pytest

from batchclient.errors import BadRequest, NotFound
from tests.core import FailureKind, Request, SendBatch, Submitted, Woke
from tests.inspection import held_bytes
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

COMMON = shape()
REFUSED = {
    "refused models": {"kind": FailureKind.REFUSED, "error": NotFound, "status": 404},
    "refused shapes": {"kind": FailureKind.UNSUPPORTED, "error": BadRequest},
}


@pytest.mark.long
@pytest.mark.parametrize("new", ["models", "prompts", *REFUSED])
def test_calls_of_which_each_has_something_new_do_not_pile_up(new):
    """The first 5,000 fill what there is, and the next 5,000 find it full."""
    play, size = Playbook(limit=[4, 4] if new == "refused shapes" else 4, max_size=1), []
    core = play.submit(*calls("under_way", deadline=1e6)).scheduler
    for number in range(10_000):
        of = COMMON if new == "prompts" else shape(model=f"m{number}")
        text = b"x" * 17_000 if new == "prompts" else b""
        deadline = None if new == "prompts" else 2e6 + number
        call = Request(of, b'"%05d%s"' % (number, text), prompt_tokens=1, deadline=deadline)
        core.handle(Submitted(call), play.now)
        core.handle(Woke(), play.now)
        while any(type(one) is SendBatch and call in one.batch.requests for one in core.commands()):
            play.now += 1.0
            core.handle(failed(call, **REFUSED[new]) if new in REFUSED else answered(call), play.now)
        if number % 5_000 == 4_999:
            size.append(held_bytes(core))
    assert size[1] < {"models": 1.15, "prompts": 1.5}.get(new, 1.3) * size[0]
