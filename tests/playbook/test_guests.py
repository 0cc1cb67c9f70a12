"""A client that leaves places to others on its servers: on and off, and servers that do not show their load."""

from tests.core import (
    EndpointAdded,
    EndpointRemoved,
    Failed,
    Failure,
    FailureKind,
    GuestChanged,
    Limit,
    LoadHidden,
    LoadReported,
    Offer,
    Retuned,
    Search,
    ServerLoad,
    Submitted,
    Woke,
)
from batchclient.errors import CallAborted
from tests.playbook.playbook import Playbook, answered, calls, shape

NO_PAGE = "shows no load (it answers 404)"
TOLD = "limit.guest: endpoint 0 shows no load (it answers 404), and a guest has to see what others have there; give a number"


def guests(*limits):
    return Playbook([Limit(limit, guest=True) for limit in limits], max_size=1)


def shown(running, waiting=0, endpoint=0):
    return LoadReported(endpoint, ServerLoad(running=running, waiting=waiting))


def closed(request):
    """The connection of this call was closed by us."""
    return Failed(request.batch, Failure(FailureKind.REFUSED, CallAborted, "cancelled"))


# On and off ----------------------------------------------------------------------------------------------------------


def test_all_servers_are_left_places_from_then_on_those_too_that_are_added():
    play = Playbook([Limit(Search(64)), Limit(Search(8))])
    play >> GuestChanged(True)
    assert [each.limit for each in play.endpoints] == [16, 8], "before the first answer a guest begins with few"
    assert play.adjusted == ["limit 64 -> 16: a guest begins with few"]
    play >> EndpointAdded(7, Limit(Search(64)))
    assert play.endpoints[2].limit == 16
    play >> Retuned(limits=[Limit(Search(32)) for _ in range(3)])
    assert [each.limit for each in play.endpoints] == [16, 16, 16]
    play >> GuestChanged(False)
    play >> EndpointAdded(8, Limit(Search(64)))
    assert play.endpoints[3].limit == 64


def test_a_guest_with_one_call_in_flight_still_looks_whether_there_is_room():
    play = Playbook([Limit(8)], max_size=1)
    (a,) = calls("a")
    play >> GuestChanged(True)
    play.submit(a) >> Woke()
    assert play.scheduler.heeds_load(0)
    play >> GuestChanged(False)
    assert not play.scheduler.heeds_load(0)
    play >> GuestChanged(True) >> answered(a)
    assert not play.scheduler.heeds_load(0), "with none in flight nothing is asked"


def test_freed_places_of_a_guest_are_held_for_a_quarter_of_the_usual_lot():
    for guest, sent in [(False, []), (True, ["send d0 d1"])]:
        play = Playbook([Limit(16, guest=guest)], refill_ratio=0.5, refill_s=1.0)
        held, more = calls(16), calls("d0 d1 d2 d3 d4 d5 d6 d7")
        play.submit(*held) >> Woke()
        play.submit(*more) >> Woke() << []
        play >> answered(held[0])
        assert play.seen == ["resolve c0"]
        play >> answered(held[1])
        assert play.seen == ["resolve c1", *sent]


def test_after_a_map_that_was_a_guest_a_limit_that_is_always_one_is_one():
    play = Playbook([Limit(Search(64))])
    play >> GuestChanged(True, or_usual=True) >> GuestChanged(False, or_usual=True)
    assert play.endpoints[0].limit == 64
    play >> GuestChanged(True, or_usual=True) >> Retuned(limits=[Limit(Search(32), guest=True)])
    play >> GuestChanged(False, or_usual=True)
    assert play.endpoints[0].limit == 16, "set while the map went on"
    play >> Retuned(limits=[Limit(Search(64))])
    assert play.endpoints[0].limit == 64
    play >> Retuned(limits=[Limit(Search(64), guest=True)]) >> EndpointAdded(7, Limit(Search(64), guest=True))
    assert [each.limit for each in play.endpoints] == [16, 16], "set afterwards"


def test_a_limit_that_is_always_a_guest_is_refused_where_no_load_is_shown_after_a_map_too():
    play = Playbook([Limit(2)], max_size=1)
    a, b, c = calls("a b c")
    play >> GuestChanged(True, or_usual=True)
    play.submit(a) >> Woke() << ["send a"]
    play >> LoadHidden(0, NO_PAGE) >> GuestChanged(False, or_usual=True) << []
    play >> Retuned(limits=[Limit(2, guest=True)]) << ["abort a", "reject a: ConfigError"]
    play >> closed(a) << []
    play >> Submitted(b) << ["reject b: ConfigError"]
    play >> Retuned(limits=[Limit(2)])
    play.submit(c) >> Woke() << ["send c"]


# A server that does not show its load --------------------------------------------------------------------------------


def test_where_no_load_is_shown_every_call_ends_and_nothing_is_sent_again():
    play = guests(2)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c) >> Woke() << ["send a", "send b"]
    play >> LoadHidden(0, NO_PAGE)
    assert sorted(play.seen) == ["abort a", "abort b", "reject a b: ConfigError", "reject c: ConfigError"]
    for call in "abc":
        assert play.errors[call].message.startswith(TOLD)
        assert play.errors[call].message.endswith("such as limit=8")
        assert (play.errors[call].field, play.errors[call].retryable) == ("limit.guest", True)
    play >> closed(a) << []
    play >> closed(b) << []
    play >> Submitted(d) << ["reject d: ConfigError"]
    assert play.endpoints[0].blocked_by == "a page that shows no load to a guest"


def test_a_guest_that_may_go_as_usual_does_so_where_no_load_is_shown_and_no_call_ends():
    play = Playbook([Limit(Search(2))], max_size=1)
    play >> GuestChanged(True, or_usual=True)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a", "send b"]
    play >> LoadHidden(0, NO_PAGE) << []
    assert play.scheduler.no_guest == f"endpoint 0 {NO_PAGE}"
    play >> answered(a) << ["resolve a", "send c"]
    play >> LoadHidden(0, NO_PAGE) << []
    # Asked for again, it is none at once.
    play >> GuestChanged(False) >> GuestChanged(True, or_usual=True) << []
    assert play.scheduler.no_guest == f"endpoint 0 {NO_PAGE}"
    play >> shown(2)
    play >> GuestChanged(True, or_usual=True)
    assert play.scheduler.no_guest == "", "the page is there now"


def test_a_page_that_shows_not_what_waits_is_none_for_a_guest():
    for load in (ServerLoad(running=2), ServerLoad(waiting=0), ServerLoad(kv_usage_ratio=0.1)):
        play = guests(2)
        play.submit(*calls("a")) >> Woke()
        play >> LoadReported(0, load)
        assert "shows not both what runs and what waits" in play.errors["a"].message


def test_each_server_is_judged_by_itself_and_calls_go_to_one_that_shows_its_load():
    play = guests(1, 1)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a @0", "send b @1"]
    play >> LoadHidden(0, NO_PAGE) << ["abort a"]
    play >> closed(a) << []
    play >> answered(b) << ["resolve b", "send a @1"]
    play >> answered(a) << ["resolve a", "send c @1"]
    play >> EndpointAdded(7, Limit(1)) << []
    play >> EndpointRemoved(7) << ["gone @7"]
    (d,) = calls("d")
    play.submit(d)
    # The last that shows its load leaves.
    play >> EndpointRemoved(1) << ["reject d: ConfigError"]


def test_calls_whose_model_is_served_by_none_that_shows_its_load_end_beside_others_that_go_on():
    limits = [Limit(1, guest=True), Limit(1, guest=True)]
    play = Playbook(limits, max_size=1, offers=[Offer("large"), Offer("small")])
    a, b, late = calls("a b late", shape(model="large"))
    (c,) = calls("c", shape(model="small"))
    play.submit(a, b, c) >> Woke() << ["send a @0", "send c @1"]
    play >> LoadHidden(0, NO_PAGE) << ["abort a", "reject a: ConfigError", "reject b: ConfigError"]
    play >> Submitted(late) << ["reject late: ConfigError"]
    play >> answered(c) << ["resolve c"]


def test_a_server_that_has_shown_its_load_is_not_refused_later():
    play = guests(2)
    a, b = calls("a b")
    play.submit(a, b) >> Woke()
    play >> shown(2) << []
    play >> LoadHidden(0, NO_PAGE) << []
    play >> LoadReported(0, ServerLoad(kv_usage_ratio=0.5)) << []
    play >> answered(a) << ["resolve a"]


def test_who_is_no_guest_needs_no_page_and_who_becomes_one_is_refused_at_once():
    play = Playbook([Limit(2)], max_size=1)
    a, b = calls("a b")
    play.submit(a) >> Woke() >> LoadHidden(0, NO_PAGE) << []
    play >> GuestChanged(True) << ["abort a", "reject a: ConfigError"]
    play >> closed(a) >> GuestChanged(False) << []
    play.submit(b) >> Woke() << ["send b"]
