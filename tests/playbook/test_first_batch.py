"""The first story: calls of one turn become one request, and every caller gets its own answer. Rules 1, 2, 10 and 11."""

from tests.core import Answered, Cancelled, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, shape


def test_calls_of_one_turn_travel_together():
    play = Playbook(limit=4)
    a, b, c = calls("a b c")
    play >> Submitted(a) << []
    play >> Submitted(b) << []
    play >> Submitted(c) << []
    play >> Woke() << ["send a b c"]
    play.at(1.0) >> answered(a, b, c) << ["resolve a b c"]
    assert play.scheduler.idle


def test_a_submitted_call_asks_to_be_looked_at_now_and_no_later():
    play = Playbook()
    assert play.wakes_at is None
    (a,) = calls("a")
    play.at(3.0) >> Submitted(a) << []
    assert play.wakes_at == 3.0
    play >> Woke() << ["send a"]
    assert play.wakes_at is None


def test_an_idle_endpoint_sends_at_once_whatever_lingers():
    play = Playbook(limit=8, linger_s=5.0, refill_s=5.0, refill_ratio=1.0)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]


def test_answers_come_in_any_order_and_each_goes_to_its_caller():
    play = Playbook(limit=4)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play.at(1.0) >> answered(c) << ["resolve c"]
    play.at(2.0) >> answered(b, a) << ["resolve b a"]
    assert play.succeeded == 3


def test_calls_of_different_shapes_never_share_a_batch():
    play = Playbook(limit=8)
    one, other = shape(), shape()
    (a, c), (b, d) = calls("a c", one), calls("b d", other)
    play.submit(a, b, c, d) >> Woke() << ["send a c", "send b d"]


def test_the_oldest_group_is_sent_first():
    play = Playbook(limit=2)
    (a,), (b, c) = calls("a", shape()), calls("b c", shape())
    play.submit(b, a, c) >> Woke() << ["send b c"]
    play.at(1.0) >> answered(b, c) << ["resolve b c", "send a"]


def test_calls_that_must_go_alone_go_alone_and_are_counted():
    play = Playbook(limit=8)
    a, b = calls("a b", shape(alone_reason="kv_transfer_params"))
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    play >> answered(a) << ["resolve a"]
    play >> answered(b) << ["resolve b"]
    assert play.alone == {"kv_transfer_params": 2}


def test_a_permit_returns_when_its_choice_finishes_not_when_the_batch_ends():
    play = Playbook(limit=2)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b"]
    assert play.in_flight == 2
    play.at(1.0) >> answered(a) << ["resolve a", "send c"]
    assert play.in_flight == 2
    play.at(2.0) >> answered(c) << ["resolve c"]
    play.at(3.0) >> answered(b) << ["resolve b"]
    assert play.in_flight == 0


def test_a_reply_whose_last_answer_came_may_end_later():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    batch = play.last
    play >> answered(a, b, ended=False) << ["resolve a b"]
    assert play.in_flight == 0
    assert not play.scheduler.idle
    play >> Answered(batch, [], ended=True) << []
    assert play.scheduler.idle


def test_commands_are_forgotten_once_read():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    assert play.scheduler.commands() == []


def test_a_call_cancelled_after_its_answer_changes_nothing():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    play >> Cancelled(a) << []
    assert play.cancelled == 0


def test_the_statistics_count_every_call_once_at_its_end():
    play = Playbook(limit=2)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b"]
    play >> Cancelled(c) << []
    play >> answered(a, tokens=3) << ["resolve a"]
    play >> answered(b, tokens=4) << ["resolve b"]
    assert (play.submitted, play.succeeded, play.failed, play.cancelled) == (3, 2, 0, 1)
    assert (play.batches, play.list_sizes) == (1, {2: 1})
    assert (play.prompt_tokens, play.completion_tokens) == (2, 7)


def test_the_repr_of_a_scheduler_says_where_its_calls_are():
    play = Playbook(limit=2, max_queued=1)
    a, b, c, d = calls("a b c d")
    play >> Submitted(a) << []
    play >> Woke() << ["send a"]
    play >> Submitted(b) << []
    play >> Woke() << ["send b"]
    play.submit(c, d) >> Woke() << []
    assert repr(play.scheduler) == "<Scheduler: 1 queued, 1 waiting, 2 in flight>"
