"""When a server's own count of tokens shows that its engine is dead."""

from batchclient._core.limits import ServerLoad
from batchclient._core.servers.dead_engine import DeadEngine

NEVER = float("-inf")


def verdicts(times, *, running=1.0, tokens=lambda at: 7.0, answered_at=NEVER, in_flight=0):
    still = DeadEngine()
    return [
        still.observe(ServerLoad(running=running, generation_tokens=tokens(at)), answered_at, in_flight, float(at))
        for at in times
    ]


def test_a_minute_without_a_token_while_sequences_run_is_death():
    assert verdicts([0, 10, 20, 30, 40, 50, 59, 60]) == [False] * 7 + [True]


def test_prompts_are_given_time_to_be_read():
    assert not any(verdicts(range(0, 160, 10), in_flight=10_000))
    assert verdicts(range(0, 161, 10), in_flight=10_000)[-1]


def test_an_answer_starts_the_minute():
    assert not any(verdicts(range(0, 81, 10), answered_at=25.0))
    assert verdicts(range(0, 91, 10), answered_at=25.0)[-1]


def test_a_moving_count_an_idle_server_and_one_that_does_not_count_are_well():
    long = range(0, 500, 5)
    assert not any(verdicts(long, tokens=lambda at: at // 50))
    assert not any(verdicts(long, running=0.0))
    assert not any(verdicts(long, running=None))
    assert not any(verdicts(long, tokens=lambda at: None))


def test_reports_far_apart_show_nothing():
    assert not any(verdicts(range(0, 500, 11)))
    assert any(verdicts(range(0, 500, 10)))
