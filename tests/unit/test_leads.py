"""Who goes ahead, who is held for it, and until when."""

from batchclient._core.families import path_of
from batchclient._core.groups import FamilyGroup
from batchclient._core.leads import LONGEST_LEAD_S, Leads
from batchclient._core.messages import Request, Shape
from batchclient._core.order import Order
from batchclient._core.warmth import Warmth

SHAPE = Shape(b"one", b"{}")


def of(family):
    request = Request(SHAPE, b'"p"')
    request.family = family
    return request


def test_the_first_of_a_family_goes_ahead_and_the_next_are_held():
    leads = Leads()
    assert [leads.holds(of(family), 0.0) for family in (7, 7, 8, 7, 8)] == [False, True, False, True, True]


def test_a_call_without_a_family_is_never_held():
    leads = Leads()
    assert [leads.holds(of(0), 0.0) for _ in range(3)] == [False, False, False]
    assert leads.until is None


def test_an_answer_lets_its_family_go_and_no_other():
    leads, first = Leads(), of(7)
    leads.holds(first, 0.0)
    leads.holds(of(8), 0.1)
    assert leads.due(0.2) == []
    leads.ended([first])
    assert leads.due(0.2) == [7]
    assert leads.due(0.3) == [], "it is said once"
    assert not leads.holds(of(7), 0.3), "nobody goes ahead for it again"
    assert leads.holds(of(8), 0.3)


def test_a_family_is_let_go_after_a_second():
    leads = Leads()
    leads.holds(of(7), 1.0)
    leads.holds(of(8), 1.5)
    assert leads.until == 1.0 + LONGEST_LEAD_S == 2.0
    assert leads.due(1.9) == []
    assert leads.due(2.0) == [7]
    assert leads.until == 2.5
    assert leads.due(9.0) == [8]
    assert leads.until is None


def test_a_late_answer_lets_nobody_go_twice():
    leads, first = Leads(), of(7)
    leads.holds(first, 0.0)
    assert leads.due(1.0) == [7]
    leads.ended([first])
    assert leads.due(1.1) == []


def test_nobody_is_held_once_the_second_is_over_though_nobody_has_asked():
    leads = Leads()
    leads.holds(of(7), 0.0)
    assert leads.holds(of(7), 0.9)
    assert not leads.holds(of(7), 1.0)


def test_what_is_remembered_is_bounded():
    leads = Leads()
    for family in range(1, 20_001):
        leads.holds(of(family), 0.0)
    leads.due(1.0)
    assert len(leads._led) == 16_384
    assert not leads._ahead
    assert not leads.holds(of(1), 2.0), "it has been forgotten, and goes ahead again"
    assert leads.holds(of(1), 2.0)


def test_who_comes_back_goes_first_but_does_not_become_the_oldest():
    """Else those who were held would begin one run after another, before calls that came long before them."""
    group = FamilyGroup(SHAPE, Order(), Warmth(5.0, Leads()))
    requests = []
    for number, letter in enumerate(b"abcaa"):
        request = Request(SHAPE, bytes([letter]) * 300)
        request.seq = number
        requests.append(request)
    a1, b1, c1, a2, a3 = requests
    for request in (b1, c1):
        group.add(request, path_of(request))
    group.bring_back([a2, a3])
    assert group.size == 4
    assert [group.oldest()] + [group.take(1, None, 0.0)[0] for _ in range(2)] == [b1, b1, c1]
    assert group.oldest() is a2


def test_a_family_that_was_served_long_ago_is_warm_again_when_it_is_let_go():
    warmth = Warmth(5.0, Leads())
    warmth.let_go(7, 0.0)
    assert warmth.is_warm(7, 4.9) and not warmth.is_warm(7, 5.0)
    warmth.let_go(7, 60.0)
    assert warmth.is_warm(7, 64.9)
    warmth.let_go(7, 62.0)
    assert not warmth.is_warm(7, 65.0), "a run is not made longer"
