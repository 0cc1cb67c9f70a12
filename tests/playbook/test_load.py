"""What a server says of its load reaches its limit, and nobody else's."""

from batchclient._core.limits import FixedLimit, LimitControl, LoadCap, ServerLoad
from batchclient._core.messages import LoadReported, Woke
from tests.playbook.playbook import Playbook, answered, calls

QUEUED = ServerLoad(running=4, waiting=4)
EMPTY = ServerLoad(running=4, waiting=0)


def play_with_caps(limits):
    play = Playbook(limit=limits)
    for endpoint, limit in zip(
        play.scheduler._endpoints, limits if isinstance(limits, list) else [limits], strict=True
    ):
        endpoint.limit = LimitControl(FixedLimit(limit), (LoadCap(),))
    return play


def report(play, load, times, endpoint=0):
    for now in times:
        play.at(now) >> LoadReported(endpoint, load) << []
    return [(one.endpoint, one.old, one.new) for one in play.adjustments]


def test_a_standing_queue_lowers_one_endpoints_limit():
    play = play_with_caps([8, 8])
    play.submit(*calls(16)) >> Woke()
    assert report(play, QUEUED, [0.5 * number for number in range(7)], endpoint=1) == [(1, 8, 6)]
    assert [each.limit for each in play.endpoints] == [8, 6]


def test_what_is_above_the_lowered_limit_waits():
    play = play_with_caps(8)
    several = calls(9)
    play.submit(*several) >> Woke() << ["send c0 c1 c2 c3 c4 c5 c6 c7"]
    report(play, QUEUED, [0.5 * number for number in range(7)])
    play >> answered(several[0], several[1]) << ["resolve c0 c1"]
    play >> answered(several[2]) << ["resolve c2", "send c8"]


def test_a_limit_that_recovers_lets_calls_go_at_once():
    play = play_with_caps(50)
    play.submit(*calls(60)) >> Woke()
    assert report(play, ServerLoad(running=40, waiting=10), [0.5 * number for number in range(7)]) == [(0, 50, 42)]
    first = play.sent[0].requests
    play >> answered(*first[:9]) << ["resolve c0 c1 c2 c3 c4 c5 c6 c7 c8", "send c50"]
    for now in (3.5, 4.0, 4.5, 5.0, 5.5, 6.0):
        play.at(now) >> LoadReported(0, ServerLoad(running=42, waiting=0)) << []
    play.at(6.5) >> LoadReported(0, ServerLoad(running=42, waiting=0)) << ["send c51"]


def test_only_more_than_one_in_flight_is_worth_a_question():
    play = play_with_caps(8)
    assert not play.scheduler.asks_for_load(0)
    play.submit(*calls("a")) >> Woke()
    assert not play.scheduler.asks_for_load(0)
    play.submit(*calls("b")) >> Woke()
    assert play.scheduler.asks_for_load(0)


def test_a_limit_that_does_not_listen_is_left_alone():
    play = Playbook(limit=8)
    play.submit(*calls(8)) >> Woke()
    assert report(play, QUEUED, range(20)) == []
