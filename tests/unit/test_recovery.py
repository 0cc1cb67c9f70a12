"""What becomes of the requests of a failed batch."""

import pytest

from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.limits import FixedLimit
from batchclient._core.messages import Batch, Failed, Failure, FailureKind, Isolation, Request, RequestState, Shape
from batchclient._core.waiting.queue import Queue
from batchclient._core.outcomes.recovery import Recovery
from batchclient._core.statistics import Counters
from batchclient.errors import BadRequest

SHAPE = Shape(b"k", b"{}")


class Scene:
    """A failed batch of some requests, and where they went."""

    def __init__(self, size, *, failures=0, streamed=True, isolation=None, proven=False):
        self.queue, self.counters = Queue(), Counters()
        self.recovery = Recovery(self.queue, self.counters)
        self.endpoint = Endpoint(0, FixedLimit(64), 64)
        self.endpoint.can().lists_proven = proven
        self.requests = []
        for seq in range(size):
            request = Request(SHAPE, b'"p"')
            request.seq, request.state = seq, RequestState.IN_FLIGHT
            self.requests.append(request)
        self.batch = Batch(1, 0, SHAPE, self.requests, streamed, failures, 0.0, 0.0, isolation)

    def fail(self, kind, *, delay=None, now=10.0, alive=None, **fields):
        event = Failed(self.batch, Failure(kind, BadRequest, "x", **fields), delay)
        return self.recovery.try_again(event, alive or self.requests, self.endpoint, now)

    def groups(self):
        found = []
        while (popped := self.queue.pop()) is not None:
            group = popped[0]
            found.append((sorted(request.seq for request in group), group))
        return found


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.FIELDS_REFUSED])
def test_a_single_without_a_retry_delay_has_failed(kind):
    scene = Scene(1, streamed=False)
    assert not scene.fail(kind)
    assert scene.queue.size == scene.recovery.backing_off == 0


@pytest.mark.parametrize("size", [1, 3])
def test_what_was_refused_for_fields_of_ours_is_sent_again_at_once_as_it_was(size):
    scene = Scene(size, failures=1)
    assert scene.fail(FailureKind.FIELDS_REFUSED)
    ((seqs, group),) = scene.groups()
    assert (seqs, group.failures, group.sealed) == (list(range(size)), 1, True)
    assert scene.counters.retries == 0


@pytest.mark.parametrize("kind", [FailureKind.NOT_SENT, FailureKind.MAYBE_PROCESSED, FailureKind.REJECTED])
def test_a_list_waits_as_long_as_the_policy_said(kind):
    scene = Scene(3, failures=2)
    assert scene.fail(kind, delay=5.0)
    assert (scene.recovery.backing_off, scene.recovery.next_due()) == (3, 15.0)
    assert {request.state for request in scene.requests} == {RequestState.BACKING_OFF}
    scene.recovery.requeue(14.9)
    assert scene.queue.size == 0
    scene.recovery.requeue(15.0)
    ((seqs, group),) = scene.groups()
    assert (seqs, group.failures, group.sealed, group.whole) == ([0, 1, 2], 3, True, False)
    assert (scene.recovery.backing_off, scene.recovery.next_due()) == (0, None)
    assert scene.counters.retries == 1


def test_halves_are_sealed_whole_and_share_one_search():
    scene = Scene(5, failures=1)
    assert scene.fail(FailureKind.BAD_CALL)
    (first, left), (second, right) = scene.groups()
    assert (first, second) == ([0, 1, 2], [3, 4])
    assert left.sealed and left.whole and right.sealed and right.whole
    assert left.isolation is right.isolation
    assert left.isolation.size == 5
    assert left.failures == 1


def test_a_search_goes_on_over_its_halves():
    isolation = Isolation(size=8)
    scene = Scene(4, isolation=isolation)
    scene.fail(FailureKind.BAD_CALL)
    assert {id(group.isolation) for _, group in scene.groups()} == {id(isolation)}


def test_a_guilty_single_is_noted_in_its_search():
    isolation = Isolation(size=8)
    scene = Scene(1, isolation=isolation)
    assert not scene.fail(FailureKind.BAD_CALL)
    assert isolation.bad == 1


def test_only_those_alive_come_back():
    scene = Scene(4)
    scene.fail(FailureKind.BAD_CALL, alive=scene.requests[2:])
    assert [seqs for seqs, _ in scene.groups()] == [[2], [3]]


def test_a_refused_list_comes_back_as_singles():
    scene = Scene(3, failures=1)
    scene.fail(FailureKind.LIST_REFUSED)
    found = scene.groups()
    assert [seqs for seqs, _ in found] == [[0], [1], [2]]
    assert {group.failures for _, group in found} == {1}
    assert not scene.endpoint.can().lists.allows(10.0)


def test_a_refused_list_is_searched_where_lists_have_worked():
    scene = Scene(2, proven=True)
    scene.fail(FailureKind.LIST_REFUSED)
    assert [seqs for seqs, _ in scene.groups()] == [[0], [1]]
    assert scene.endpoint.can().lists.allows(10.0)
    assert scene.counters.splits == 1


def test_a_mismatch_counts_as_a_failure_where_lists_have_worked():
    scene = Scene(2, failures=1)
    scene.endpoint.can().lists_proven = True
    scene.fail(FailureKind.MISMATCH, delay=1.0)
    assert {group.failures for _, group in scene.groups()} == {2}
    assert scene.endpoint.can().lists.allows(10.0)


def test_a_refused_stream_comes_back_whole_and_as_it_was():
    isolation = Isolation(size=8)
    scene = Scene(3, failures=1, isolation=isolation)
    scene.fail(FailureKind.STREAM_REFUSED)
    ((seqs, group),) = scene.groups()
    assert (seqs, group.failures, group.isolation) == ([0, 1, 2], 1, isolation)
    assert not scene.endpoint.can().streams(10.0)


def test_a_plain_request_cannot_be_refused_as_a_stream():
    scene = Scene(3, streamed=False)
    assert not scene.fail(FailureKind.STREAM_REFUSED)
    assert scene.endpoint.can().streams(10.0)


@pytest.mark.parametrize("packed", [True, False])
def test_what_is_refused_as_base64_comes_back_whole_if_it_was(packed):
    scene = Scene(3, failures=1)
    scene.batch.packed = packed
    assert scene.fail(FailureKind.PACKING_REFUSED) is packed
    assert [seqs for seqs, _ in scene.groups()] == ([[0, 1, 2]] if packed else [])
    assert scene.endpoint.can().packing.allows(10.0) is not packed


def test_a_list_too_long_comes_back_in_halves_that_are_no_search():
    scene = Scene(4)
    scene.fail(FailureKind.LIST_TOO_LONG, list_cap=3)
    found = scene.groups()
    assert [seqs for seqs, _ in found] == [[0, 1], [2, 3]]
    assert {group.isolation for _, group in found} == {None}
    assert scene.endpoint.list_cap(10.0) == 3


def test_those_that_have_gone_meanwhile_do_not_come_back():
    scene = Scene(2)
    scene.fail(FailureKind.MAYBE_PROCESSED, delay=1.0)
    scene.requests[0].state = RequestState.DONE
    scene.recovery.backing_off -= 1
    assert [request.seq for request in scene.recovery.requests()] == [1]
    scene.recovery.requeue(11.0)
    assert [seqs for seqs, _ in scene.groups()] == [[1]]
    assert scene.recovery.backing_off == 0


def test_every_prompt_well_alone_means_the_list_was_refused():
    scene = Scene(1, isolation=Isolation(size=2, good=1))
    scene.recovery.isolated(scene.batch, 1, scene.endpoint, 10.0)
    assert not scene.endpoint.can().lists.allows(10.0)


@pytest.mark.parametrize(
    ("isolation", "proven", "size"),
    [
        (None, False, 1),
        (Isolation(3, good=1), False, 1),
        (Isolation(2, good=1, bad=1), False, 1),
        (Isolation(2, good=1), True, 1),
        (Isolation(2), False, 2),
    ],
)
def test_anything_less_does_not(isolation, proven, size):
    scene = Scene(size, isolation=isolation, proven=proven)
    scene.recovery.isolated(scene.batch, size, scene.endpoint, 10.0)
    assert scene.endpoint.can().lists.allows(10.0)
