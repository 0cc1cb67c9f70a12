"""The batching rule's numbers: what goes alone, what is streamed, how long a user's table may make a list. Its times are in ``playbook``."""

from batchclient._core.batching import BatchingRule
from tests.core import FixedLimit, Kind, Request, RequestState, SchedulerSettings, Shape
from batchclient._core.learnt.lengths import OutputLengths
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.waiting.queue import Group


def shape(most=16, **fields):
    return Shape(b"k", b"{}", max_output_tokens=most, **fields)


class Scene:
    """The rule of some settings, with an endpoint; answers of ``seen`` tokens were learnt."""

    def __init__(self, *, seen=None, limit=1000, max_size=64, known_caps=None, **settings):
        lengths = OutputLengths()
        if seen is not None:
            lengths.learn(b"k", seen)
        self.rule = BatchingRule(SchedulerSettings(**settings), lengths)
        self.endpoint = Endpoint(0, FixedLimit(limit), max_size, **({"known_caps": known_caps} if known_caps else {}))
        self.endpoint.trusts_lists = lambda: True

    def alone(self, one):
        return self.rule.alone(one, self.endpoint, 0.0)

    def streams(self, one, size=2, now=0.0):
        return self.rule.wants_stream(one, size, self.endpoint, now)

    def longest(self, depth, *, held=0, sealed=False, whole=False, now=0.0, of=None):
        """How long a list becomes where so many calls wait and so many permits are taken, and whether others must wait."""
        self.endpoint.take(held, 0.0)
        group = Group(of or shape(1), sealed=sealed, whole=whole)
        for _ in range(depth):
            request = Request(group.shape, b'"p"')
            request.state, request.queued_at = RequestState.QUEUED, 0.0
            group.add(request)
        count, _, blocks = self.rule.decide(group, group.oldest(), self.endpoint, now, None)
        self.endpoint.give_back(held, 0.0)
        return count, blocks


def test_what_goes_alone():
    long = "long output expected"
    for seen, of, reason in (
        (None, shape(), None),
        (None, shape(None), None),
        (256.0, shape(), None),
        (257.0, shape(), long),
        # A list that cannot stream is for short answers, at most an eighth of those of other lists.
        (None, shape(32, lists_plain=True), None),
        (None, shape(33, lists_plain=True), f"{long}, and the list cannot stream"),
        (None, shape(None, lists_plain=True), f"{long}, and the list cannot stream"),
        (12.0, shape(2000, lists_plain=True), None),
        # Answers that were seen to end together may be longer there: half.
        (75.0, shape(100, lists_plain=True), None),
        (74.0, shape(100, lists_plain=True), f"{long}, and the list cannot stream"),
        (128.0, shape(128, lists_plain=True), None),
        (129.0, shape(129, lists_plain=True), f"{long}, and the list cannot stream"),
        (60.0, shape(None, lists_plain=True), f"{long}, and the list cannot stream"),
    ):
        assert Scene(seen=seen).alone(of) == reason, (seen, of.max_output_tokens, of.lists_plain)
    scene = Scene()
    scene.endpoint.can().lists.refuse(0.0)
    assert scene.alone(shape()) == "lists refused"
    assert scene.alone(shape(alone_reason="tools")) == "tools", "the call's own reason comes first"


def test_the_bounds_of_lists_that_cannot_stream_follow_that_of_all():
    for tokens, first, together in ((64, True, True), (65, False, True), (257, False, False)):
        of = shape(tokens, lists_plain=True)
        assert (Scene(alone_above_tokens=512).alone(of) is None) is first
        assert (Scene(alone_above_tokens=512, seen=tokens).alone(of) is None) is together


def test_what_is_streamed():
    for most, streams in ((0, False), (1, False), (4, False), (5, True), (None, True)):
        assert Scene().streams(shape(most)) is streams
        assert Scene().streams(shape(most, echo=True)) is (most != 0), "the prompt comes back with the answer"
        assert Scene().streams(shape(most, to_caller=True), 1)
        assert not Scene().streams(shape(most, plain_only=True))
    scene = Scene()
    scene.endpoint.can().streaming.refuse(0.0)
    assert not scene.streams(shape()) and not scene.streams(shape(to_caller=True), 1)
    assert scene.streams(shape(), now=300.0)


def test_a_table_of_the_users_replaces_the_bound_and_is_clamped_to_what_a_server_takes():
    asked = []
    assert Scene(size_for=lambda depth: asked.append(depth) or 150).longest(200)[0] == 150
    assert asked == [200]
    for answer, expected in ((3, 3), (-5, 1), (None, 64)):
        assert Scene(size_for=lambda depth, answer=answer: answer).longest(200)[0] == expected
    assert Scene(size_for=lambda depth: 150, known_caps={Kind.COMPLETION: 100}).longest(200)[0] == 100
    assert Scene(size_for=lambda depth: 3).longest(40, sealed=True)[0] == 40, "what is left of a list is not cut again"
    scene = Scene(size_for=lambda depth: 150)
    scene.endpoint.can().shorten_lists(41, 40, 0.0)
    assert scene.longest(200)[0] == 40
    scene.endpoint.can().lists.refuse(0.0)
    assert scene.longest(200)[0] == 1


def test_a_whole_half_waits_for_its_permits_and_is_cut_only_where_it_never_fits():
    for depth, held, max_size, now, expected in (
        (4, 12, 64, 0.0, (4, False)),
        (4, 13, 64, 0.0, (0, False)),
        (4, 13, 64, 9.0, (0, True)),
        (40, 0, 64, 0.0, (16, False)),
        (4, 12, 2, 0.0, (2, False)),
    ):
        scene = Scene(limit=16, max_size=max_size, starvation_s=5.0)
        assert scene.longest(depth, held=held, sealed=True, whole=True, now=now, of=shape()) == expected
