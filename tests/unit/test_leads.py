"""Who goes ahead, who is held for it, and until when."""

from batchclient._core.leads import LONGEST_LEAD_S, Leads
from batchclient._core.messages import Request, Shape

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
