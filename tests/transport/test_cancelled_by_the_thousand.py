"""Row 38 in small; ``python -m tests.soak`` cancels a hundred thousand."""

from tests.soak.cancellations import cancel_many
from tests.fakes.raw import answers_in_a_process


async def test_hundreds_of_calls_cancelled_at_every_moment_leave_no_place_taken(backend):
    with answers_in_a_process() as (url, _):
        left = await cancel_many(url, "m", 600, backend)
    assert left.cancelled >= 600
    assert (left.places, left.in_flight) == (0, 0)
