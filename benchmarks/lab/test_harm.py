"""The search for harm: its server, its naive client and its score, on cases that are worked out by hand.

python -m pytest benchmarks/lab/test_harm.py
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace

import pytest
from benchmarks.lab.harm_clients import Run, run_naive, run_ours
from benchmarks.lab.harm_draws import FORBIDDEN, MANNERS, OTHER_MODEL, Call, Chain, Draw, draw
from benchmarks.lab.harm_score import Score, check, check_alone, judge, score_of, table
from benchmarks.lab.harm_server import Server

from batchclient.testing import VirtualLoop

pytestmark = pytest.mark.long

RUN = Run(10.0, 5.0, 9.0, 0, 1.0, 0, 100, 0, frozenset({"seqs"}), "")


def work(calls=4, *, slots=100, says=True, timeout_s=None, always="", as_rows=False, **manners):
    """So many calls at once, each of which takes a second by itself and beside others."""
    server = {"slots": slots, "half": math.inf, "step_s": 1.0, "prefill_s": 0.0, "api_s": 0.0, "says": says}
    model = OTHER_MODEL if always == "model" else "m"
    chains = [Chain(0.0, [Call(f"call {n}", 1, model, always, timeout_s)]) for n in range(calls)]
    kind = "at once" if timeout_s is None else "deadlines"
    return Draw(
        0, calls, **server, has_page=False, mean_tokens=1, work=kind, as_rows=as_rows, manners=manners, chains=chains
    )


def in_loop(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


# --- the server ---


def reply_to(drawn, *calls, after=(), at_s=0.0):
    """The reply to these calls in one request, and when it came; ``after``: calls asked one by one before."""

    async def main():
        server = Server(drawn)
        await asyncio.sleep(at_s)
        for call in after:
            server.ask([call])
        reply = await server.ask(calls).reply
        return reply, server.now - at_s

    return in_loop(main)


def call(text="a", *, tokens=1, model="m", always=""):
    return Call(text, tokens, model, always)


@pytest.mark.parametrize(
    ("manners", "asked", "after", "status"),
    [
        ({"conns": 2}, [call()], [call()], 200),
        ({"conns": 2}, [call()], [call(), call()], 503),
        ({"seqs": 2}, [call(), call()], [call()], 429),
        ({"seqs": 2}, [call(), call(), call()], [], 200),  # an empty server takes any list
        ({"queue": 1}, [call()], [call()] * 101, 503),
        ({"queue": 1}, [call()], [call()] * 100, 200),
        ({"rate": 1.0}, [call()], [call()], 429),
        ({"date": 1.0}, [call()], [call()], 429),
        ({"tokens": 1.0}, [call(), call()], [], 200),  # two seconds' worth at most
        ({"tokens": 1.0}, [call()], [call(), call()], 429),
        ({"minute": (2, 0.0)}, [call()], [call()], 200),
        ({"minute": (2, 0.0)}, [call()], [call(), call()], 429),
        ({"listcap": 4}, [call()] * 5, [], 422),
        ({"listcap": 4}, [call()] * 4, [], 200),
        ({"dead": 1.0}, [call()], [], 502),
        ({"model": 0.1}, [call(), call(model=OTHER_MODEL)], [], 429),
        ({"own": 0.1}, [call(), call(always="own")], [], 429),
        ({"forbidden": 0.1}, [call(), call(FORBIDDEN)], [], 403),
        ({"length": (0.1, 3, "length")}, [call("12345678")], [], 200),
        ({"length": (0.1, 3, "length")}, [call("123456789abc")], [], 400),
        ({"length": (0.1, 3, "body")}, [call("123456789abc")], [], 413),
        ({"gone": (0.0, 5.0, 401)}, [call()], [], 401),
        ({"maintenance": (0.0, 5.0, 503)}, [call()], [], 503),
        ({"memory": (2.0, False)}, [call()], [call(), call()], 500),
    ],
)
def test_a_manner_refuses_what_it_says_and_takes_the_rest(manners, asked, after, status):
    reply, _ = reply_to(work(**manners), *asked, after=after)
    assert reply.status == status and reply.answers is (status == 200)


@pytest.mark.parametrize(
    ("manners", "at_s", "retry_after"),
    [
        ({"rate": 0.5}, 0.0, "2.000"),
        ({"minute": (1, 20.0)}, 10.0, "30.000"),
        # The epoch is a Friday, 08:00:00; ten seconds and a half later a second call would be taken after another.
        ({"date": 1.0}, 10.5, "Fri, 15 Jan 2027 08:00:12 GMT"),
    ],
)
def test_a_refusal_says_when_to_come_again(manners, at_s, retry_after):
    assert reply_to(work(**manners), call(), after=[call()], at_s=at_s)[0].retry_after == retry_after


def test_an_error_in_a_200_a_page_in_its_place_and_broken_connections_are_no_answers():
    for manners in ({"errbody": (1.0, 0)}, {"errbody": (0.0, 1)}, {"maintenance": (0.0, 5.0, 200)}):
        reply, _ = reply_to(work(**manners), call(), after=[call()])
        assert reply.status == 200 and reply.body and not reply.answers
    assert reply_to(work(lose=1.0), call())[0].broken == "lost"
    assert reply_to(work(hundredth=2), call(), after=[call()])[0].broken == "lost"
    assert reply_to(work(restart=(0.5, 5.0)), call()) == (reply_to(work(lose=1.0), call())[0], 0.5)
    assert reply_to(work(restart=(0.5, 5.0)), call(), at_s=1.0)[0].broken == "unconnected"


@pytest.mark.parametrize(
    ("manners", "asked", "after", "took_s"),
    [
        ({}, [call()], [], 1.0),
        ({}, [call(), call()], [], 1.0),
        ({"serial": True}, [call(), call(tokens=2)], [], 3.0),
        ({"hidden": 1}, [call()], [call(), call()], 3.0),
        ({"stall": (0.5, 10.0)}, [call()], [], 11.0),
        ({"slowstart": 5.0}, [call()], [], 5.0),
        ({"replicas": 4.0}, [call()], [call()], 4.0),
        ({"replicas": 4.0}, [call()], [call(), call()], 1.0),
    ],
)
def test_a_manner_slows_what_it_says(manners, asked, after, took_s):
    assert reply_to(work(**manners), *asked, after=after)[1] == pytest.approx(took_s)


def test_memory_that_runs_out_ends_all_that_run():
    async def main():
        server = Server(work(memory=(2.0, True)))
        running = [server.ask([call()]) for _ in range(3)]
        return [(await each.reply).status for each in running]

    assert in_loop(main) == [500, 500, 500]


def test_of_an_abandoned_request_nothing_more_is_done():
    async def main():
        server = Server(work(slots=1))
        first, second = server.ask([call(tokens=9)]), server.ask([call()])
        await asyncio.sleep(2.0)
        assert server.load == (1, 1)
        server.abandon(first)
        assert server.load == (1, 0)
        await second.reply
        return server.now

    assert in_loop(main) == pytest.approx(3.0)


# --- the clients ---


def test_the_naive_client_has_so_many_under_way_and_each_by_itself():
    wide, narrow = run_naive(work(slots=2), 64), run_naive(work(), 1)
    assert (wide.last_s, wide.mean_s, wide.requests) == pytest.approx((2.0, 1.5, 4))
    assert (narrow.last_s, narrow.mean_s, narrow.p95_s) == pytest.approx((4.0, 2.5, 4.0))


def test_the_naive_client_heeds_retry_after_and_backs_off():
    # Two of four are taken. The others come again after 1 s + 0.375 to 0.5 s, when the first have ended.
    run = run_naive(work(seqs=2), 64)
    assert (run.requests, run.refused, run.lost, run.acted) == (6, 2, 0, {"seqs"})
    assert 2.375 <= run.last_s <= 2.51
    # Without it after 0.375 to 0.5 s, and then 0.75 to 1 s.
    run = run_naive(work(seqs=2, says=False), 64)
    assert run.requests == 8 and 2.125 <= run.last_s <= 2.52


def test_the_naive_client_makes_five_tries_and_none_after_a_bad_request():
    # 0.5 + 1 + 2 + 4 s of pauses, at least three quarters of each.
    for manners in ({"dead": 1.0}, {"lose": 1.0}, {"gone": (0.0, 99.0, 404)}, {"errbody": (1.0, 0)}):
        drawn = work(1, **manners)
        run = run_naive(drawn, 64)
        assert (run.lost, run.requests) == (1, 5)
        assert 5.6 <= drawn.chains[0].calls[0].ended_at <= 8.1
    assert run_naive(work(1, listcap=0), 64).requests == 1


def test_a_deadline_counts_from_the_making_of_a_call():
    assert run_naive(work(slots=1, timeout_s=2.5), 64).met == 0.5


@pytest.mark.parametrize("as_rows", [False, True])
def test_the_default_client_answers_in_lists_and_is_asked_for_the_same_work(as_rows):
    drawn = work(100, as_rows=as_rows)
    run = run_ours(drawn)
    assert run.lost == 0 and run.requests < 100
    assert all(one.answered and one.tries == 1 for chain in drawn.chains for one in chain.calls)


def test_a_call_that_is_always_refused_is_not_to_be_given_up_early():
    # Five tries of the naive client take 7.5 s at most, and 23.75 s at least where each is told 5 s.
    assert run_naive(work(3, always="own", own=1.0, says=False), 64).hasty == 3
    assert run_naive(work(3, always="model", model=1.0), 64).hasty == 0


# --- draws and bars ---


def test_a_draw_is_always_the_same_and_each_manner_is_in_as_many_as_another():
    assert str(draw(17)) == str(draw(17)) and judge(5) == judge(5)
    for first in (0, 26 * 800):
        block = [list(draw(number).manners) for number in range(first, first + 26)]
        assert {manners[0] for manners in block} == set(MANNERS)
        assert max(Counter(name for manners in block for name in manners).values()) <= 2
        assert all(1 <= len(set(manners)) == len(manners) <= 3 for manners in block)
    assert list(draw(5, ("own", "seqs")).manners) == ["own", "seqs"]


@pytest.mark.parametrize(
    ("naive", "ours", "score"),
    [
        ({}, {}, 1.0),
        ({}, {"last_s": 5.0}, 1.0),  # the worst of the three
        ({}, {"last_s": 5.0, "mean_s": 2.5, "p95_s": 4.5}, 2.0),
        ({}, {"last_s": 10.7}, 1.0),  # within the grace
        ({}, {"last_s": 21.6}, 0.5),
        ({}, {"mean_s": 11.6}, 0.5),
        ({}, {"p95_s": 19.6}, 0.5),
        ({"lost": 1}, {"last_s": 99.0}, 1.0),  # its time says nothing
    ],
)
def test_the_score_is_the_worst_of_three_with_a_grace(naive, ours, score):
    assert score_of(replace(RUN, **naive), replace(RUN, **ours), is_timed=False) == pytest.approx(score)


def score(naive=None, ours=None, *, only=(), is_timed=False):
    runs = {at_once: replace(RUN, **(naive or {})) for at_once in (16, 64, 256)}
    return Score(1, only, ("seqs",), "a draw", runs, replace(RUN, **(ours or {})), is_timed)


def test_with_deadlines_the_score_is_the_share_met():
    timed = score({"met": 0.8, "lost": 20}, {"met": 0.6, "lost": 40}, is_timed=True)
    assert timed.ratio == timed.to_best == pytest.approx(0.75)
    assert timed.lost_more == 0 and timed.is_harmed
    assert score({"met": 0.0}, {"met": 0.0}, is_timed=True).ratio == 1.0


def test_a_bar_is_missed_by_one_draw_too_many():
    good, slow, still = score(), score(ours={"last_s": 15.0}), score(ours={"last_s": 30.0})

    def missed(*scores):
        return [finding.measure for finding in check(scores) if not finding.reached]

    assert missed(*[good] * 98, slow, slow) == []
    assert missed(*[good] * 97, slow, slow, slow) == ["share below 0.8"]
    assert missed(*[good] * 99, still) == ["worst"]
    assert missed(*[good] * 99, score(ours={"lost": 1})) == ["that lose more calls"]
    assert missed(*[good] * 99, score(ours={"hasty": 1})) == ["that give up too early"]
    assert missed(*[good] * 49, *[score(ours={"last_s": 11.0})] * 51) == ["median", "median of the best of three"]
    # What met no manner is beside the point.
    assert missed(*[good] * 9, score({"acted": frozenset()}, {"last_s": 99.0, "acted": frozenset()})) == []


def test_each_manner_alone_has_a_bar_of_its_own():
    good, slow = score(only=("seqs",)), score(only=("seqs",), ours={"last_s": 15.0})
    assert all(finding.reached for finding in check_alone([*[good] * 19, slow]))
    missed = [finding for finding in check_alone([*[good] * 15, *[slow] * 5]) if not finding.reached]
    assert [(finding.group, finding.measure) for finding in missed] == [("seqs alone", "tenth")]
    hasty = score(only=("seqs",), ours={"hasty": 1})
    assert [finding.measure for finding in check_alone([hasty]) if not finding.reached] == ["that give up too early"]
    assert "| 20 | 20 | 5 | 1.00 |" in table([*[good] * 15, *[slow] * 5])
