"""The planner that prices are measured by, on cases that fit on a hand."""

from __future__ import annotations

from benchmarks.lab.planner import Waiting, plan


def waiting(name: str, deadline: float, cheap_s: float = 1.0, dear_s: float = 1.0) -> Waiting[str]:
    return Waiting(deadline, cheap_s, dear_s, name)


def test_the_earliest_deadline_has_the_free_place_and_the_other_waits() -> None:
    assert plan(0.0, [0.0], [waiting("late", 9.0), waiting("soon", 2.0)]) == (["soon"], [], [])


def test_what_cannot_end_in_time_behind_the_others_goes_to_the_dear_server() -> None:
    calls = [waiting("a", 1.0), waiting("b", 2.0), waiting("c", 2.5)]
    assert plan(0.0, [0.0], calls) == (["a"], ["c"], [])


def test_two_places_serve_three_calls_that_one_does_not() -> None:
    calls = [waiting("a", 1.0), waiting("b", 1.0), waiting("c", 2.0)]
    assert plan(0.0, [0.0, 0.0], calls) == (["a", "b"], [], [])
    assert plan(0.0, [0.0], calls) == (["a"], ["b"], [])


def test_a_long_call_goes_elsewhere_and_a_short_one_with_a_later_deadline_stays() -> None:
    assert plan(0.0, [1.0], [waiting("long", 3.0, 2.5), waiting("short", 3.5, 0.5)]) == ([], ["long"], [])


def test_what_ends_in_time_nowhere_costs_nothing() -> None:
    assert plan(5.0, [9.0], [waiting("a", 6.0, dear_s=2.0)]) == ([], [], ["a"])


def test_a_place_that_was_to_be_free_by_now_is_free_now() -> None:
    assert plan(5.0, [3.0], [waiting("a", 6.5)]) == (["a"], [], [])
