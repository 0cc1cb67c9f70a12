"""The limit in force: the lowest number there is, and its reason; and a pin."""

import math

import pytest

from tests.core import FixedLimit, Limit, Outcome, ServerLoad
from batchclient._core.limits.control import LimitControl
from tests.unit.limits.samples import Server, sample


class Found(Limit):
    """A number that is found: it says what it is told to, and remembers what it was told."""

    __slots__ = ("heard",)

    def __init__(self, limit=64):
        super().__init__(limit, "found")
        self.heard = []

    def on_sample(self, sample):
        self.heard.append("sample")

    def on_load(self, load, in_flight, now, took_s=0.0):
        self.heard.append(f"{load.waiting} wait beside {in_flight}")

    def on_known(self, slots, now):
        self.heard.append(f"slots {slots}")

    def on_resume(self, now):
        self.heard.append("resume")

    def on_restart(self, now, guess=None):
        self.heard.append(f"restart, perhaps {guess}")

    def on_bound(self, now):
        self.heard.append("bound")


class Asked:
    """An objective that allows what it is told to."""

    def __init__(self, load=math.inf, reason=""):
        self.load, self.reason, self.heard = load, reason, []

    def on_sample(self, sample):
        self.heard.append("sample")

    def forget(self):
        self.heard.append("forget")


# The lowest in force ------------------------------------------------------------------------------------------------


def test_the_lowest_is_in_force_and_says_why():
    number, first, second = Found(40), Asked(50.0, "first"), Asked(30.9, "second")
    control = LimitControl(number, [first, second])
    change = control.on_sample(sample(1.0))
    assert (change.limit, change.reason) == (30, "second")
    assert control.on_sample(sample(2.0)) is None, "nothing has changed"
    second.load = 45.0
    change = control.on_sample(sample(3.0))
    assert (change.limit, change.reason) == (40, "found")
    number.limit, number.reason = 60, "more pays"
    change = control.on_sample(sample(4.0))
    assert (change.limit, change.reason) == (45, "second")
    refused = sample(6.0, 0.1, 5.0, outcome=Outcome.DROPPED, admitted_at=8)
    change = control.on_sample(refused)
    assert (change.limit, change.reason) == (22, "the server refused work")


def test_nothing_lowers_it_below_one():
    assert LimitControl(Found(4), [Asked(0.0, "nothing at all")]).on_sample(sample(1.0)).limit == 1


def test_an_objective_that_gave_up_says_so_where_nothing_else_holds_the_limit():
    number, other, gave_up = Found(40), Asked(30.0, "asked for"), Asked(reason="less load hardly lowers it")
    control = LimitControl(number, [other, gave_up])
    assert control.on_sample(sample(1.0)).reason == "asked for"
    other.load = math.inf
    assert control.on_sample(sample(2.0)).reason == "less load hardly lowers it"


def test_what_is_told_reaches_the_number_and_the_objectives():
    number, objective = Found(), Asked()
    control = LimitControl(number, [objective])
    control.on_sample(sample(2.0))
    control.on_load(ServerLoad(waiting=3), 20, 3.0)
    control.on_known(100, 4.0)
    control.on_sample(sample(5.0, outcome=Outcome.DROPPED))
    control.on_resume(5.5)
    control.on_restart(6.0)
    told = ["sample", "3 wait beside 20", "slots 100", "bound", "sample", "resume"]
    told.append("restart, perhaps 64")
    assert (number.heard, objective.heard) == (told, ["sample", "sample", "forget"])


# What the server names ----------------------------------------------------------------------------------------------


# Refusals and late answers ------------------------------------------------------------------------------------------


def test_late_answers_bound_a_number_that_is_found():
    control = LimitControl(Found(64))
    for tenth in range(80):
        control.on_sample(sample(1.0 + tenth / 10, load=50.0, outcome=Outcome.LATE if tenth % 2 else Outcome.SUCCESS))
    assert control.limit < 50
    assert control.reason == "answers came too late"


def test_refusals_bound_a_number_that_is_found_and_let_go_of_it():
    control = LimitControl(Found(100))
    server = Server(control, lambda load: 1.0)
    server.run(10.0)
    assert server.refuse().limit == 95
    assert server.run(60.0) == 100
    assert control.reason == "found"


def test_a_server_that_was_started_anew_is_not_bound_by_what_the_old_one_refused():
    control = LimitControl(FixedLimit(64), [Asked()])
    Server(control, lambda load: 1.0).refuse()
    assert control.limit == 60
    change = control.on_restart(1.0)
    assert (change.limit, change.reason) == (64, "fixed")


def test_of_a_server_that_was_started_anew_a_number_that_is_found_hears_what_was_in_force():
    number, late = Found(64), Found(64)
    control = LimitControl(late)
    for tenth in range(80):
        control.on_sample(sample(1.0 + tenth / 10, load=50.0, outcome=Outcome.LATE if tenth % 2 else Outcome.SUCCESS))
    in_force = control.limit
    control.on_restart(9.0)
    assert in_force < 50 and late.heard[-1] == f"restart, perhaps {in_force}"
    # A server that goes away refuses whatever the load is.
    control = LimitControl(number)
    Server(control, lambda load: 1.0).refuse()
    assert control.limit == 60
    control.on_restart(1.0)
    assert number.heard[-1] == "restart, perhaps 64"


def test_a_pin_is_no_guess_of_what_a_new_server_may_have():
    number = Found(64)
    control = LimitControl(number)
    control.pin(8, 0.5)
    control.on_restart(1.0)
    assert (number.heard[-1], control.limit) == ("restart, perhaps None", 8)


# A pin --------------------------------------------------------------------------------------------------------------


def test_a_pin_holds_whatever_is_said():
    objective = Asked(3.0, "low")
    control = LimitControl(Found(40), [objective])
    change = control.pin(64, 1.0)
    assert (change.limit, change.reason) == (64, "pinned")
    assert control.on_sample(sample(2.0)) is None
    assert control.on_sample(sample(2.5, load=64.0, outcome=Outcome.DROPPED)) is None
    assert control.on_known(8, 3.0) is None
    control.pin(None, 4.0)
    assert control.limit == 3


def test_a_pin_that_is_let_go_says_so():
    control = LimitControl(Found(40))
    assert control.pin(None, 1.0) is None, "there is none"
    assert control.reason == "found"
    control.pin(40, 1.0)
    assert control.reason == "pinned", "of the same number too"
    control.pin(None, 2.0)
    assert control.reason == "unpinned"
    control.pin(64, 3.0)
    change = control.pin(None, 4.0)
    assert (change.limit, change.reason) == (40, "unpinned")


@pytest.mark.parametrize("number", [0, -1])
def test_a_pin_is_at_least_one(number):
    with pytest.raises(ValueError, match="at least 1"):
        LimitControl(Found()).pin(number, 1.0)
