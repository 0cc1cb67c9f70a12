"""One cell: what is counted, from where times run, what is marked."""

import asyncio
import math
from dataclasses import replace

import pytest
from tests.bench.conftest import QUICK, SHORT, URL

from batchclient import ServerInfo, ServerLoad
from batchclient.bench import Closed, Poisson, Setting, Slo, Times
from batchclient.bench.marks import BAD, BEHIND, BUSY, CACHED, FAILED, LATE, OTHERS, RETRIED
from batchclient.bench.measurement import measurement_of
from batchclient.bench.summary import best_of, summaries_of
from batchclient.bench.generator import generate
from batchclient.bench.session import begin
from batchclient.simulator import SimulatedServer
from batchclient.testing import MockLLM

TIMES = Times(warm_up_s=1.0, window_s=4.0, grace_s=3.0)


def answering(seconds, loop=asyncio.get_running_loop):
    """A client of its own: each call takes so long; a function of its number is possible."""

    async def call(prompt, calls, place):
        calls.sent[place] = loop().time()
        await asyncio.sleep(seconds(place) if callable(seconds) else seconds)
        calls.answered(place, loop().time(), 10, 5)

    return call


async def cell(call, load, times=TIMES, setting=None, slos=(), **options):
    window = await generate(call, load, map(str, iter(int, 1)), times, 3, lambda: 0.0)
    made = Setting("fixed", None, 1, load.rate if isinstance(load, Poisson) else None)
    return measurement_of(setting or made, 0, window, slos, **options)


STRATEGIES = [
    Setting("adaptive", concurrency=16),
    Setting("fixed", concurrency=16),
    Setting("lists", 8, 16),
    Setting("singles", concurrency=16),
    Setting("adaptive", rate=40.0),
]


@pytest.mark.parametrize("setting", STRATEGIES, ids=str)
async def test_every_scheduled_call_is_accounted_for(session, setting):
    server = SimulatedServer("gpu", faults=["status=500,rate=0.1"])
    measured = await (await session(server=server)).measure(setting)
    assert measured.scheduled == measured.answered + sum(measured.failed.values()) + measured.unanswered
    assert measured.answered > 30


@pytest.mark.parametrize("setting", STRATEGIES, ids=str)
async def test_a_latency_has_its_parts(session, setting):
    windows = []
    begun = await session()
    begun.on_window = lambda setting, repetition, window: windows.append(window)
    measured = await begun.measure(setting)
    calls = windows[0].calls
    for place, outcome in enumerate(calls.outcomes):
        if outcome == 1:
            assert calls.scheduled[place] <= calls.begun[place] <= calls.sent[place] < calls.ended[place]
    assert measured.times["late"].max == 0
    assert "ttft" in measured.times


async def test_lists_are_of_the_size_that_was_asked_for(session):
    begun = await session(times=Times(0.3, 0.7, 10))
    lists = await begun.measure(Setting("lists", 16, 64))
    single = await begun.measure(Setting("singles", concurrency=64))
    prompts = sum(size * count for size, count in lists.list_sizes.items())
    assert prompts / sum(lists.list_sizes.values()) > 10
    assert max(lists.list_sizes) <= 16
    assert set(single.list_sizes) == {1}
    assert "tpot" in lists.times


async def test_a_stall_of_the_server_is_in_the_percentiles_whatever_the_generator_does():
    """The server answers nothing between 2 s and 4 s of the window; arrivals go on."""
    loop = asyncio.get_running_loop()
    stalls = loop.time() + 1 + 2, loop.time() + 1 + 4

    async def call(prompt, calls, place):
        calls.sent[place] = loop.time()
        await asyncio.sleep(0.05)
        if stalls[0] <= loop.time() < stalls[1]:
            await asyncio.sleep(stalls[1] - loop.time())
        calls.answered(place, loop.time(), 10, 5)

    measured = await cell(call, Poisson(100.0), Times(1, 6, 5))
    assert measured.times["latency"].percentiles[0.99] == pytest.approx(2.0, abs=0.1)
    assert measured.times["latency"].percentiles[0.5] < 0.2


async def test_a_call_that_waits_in_the_generator_is_late_by_its_schedule():
    """A generator that sleeps in its loop: arrivals keep their scheduled times, and the cell is marked."""
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        loop.clock += 0.02  # as if the loop had stood still
        calls.sent[place] = loop.time()
        await asyncio.sleep(0.01)
        calls.answered(place, loop.time(), 1, 1)

    measured = await cell(call, Poisson(100.0), replace(TIMES, grace_s=20.0))
    assert measured.unanswered == 0
    assert measured.marks == (LATE.name,)
    assert measured.measured_the_client
    assert measured.times["late"].percentiles[0.5] > 1.0
    assert measured.times["latency"].percentiles[0.5] > measured.times["late"].percentiles[0.5]


def busy(call_s, *times):
    """Cells of 100 arrivals a second, whose generator needs so many seconds for each."""

    async def run():
        loop = asyncio.get_running_loop()

        async def call(prompt, calls, place):
            loop.clock += call_s
            calls.answered(place, loop.time(), 1, 1)

        return [await cell(call, Poisson(100.0), each) for each in times]

    return run()


async def test_the_window_waits_for_its_last_arrival_also_between_two_calls():
    """No call is under way when the window ends."""
    (measured,) = await busy(0.02, Times(0, 2, 20))
    assert measured.unanswered == 0
    assert measured.answered == measured.scheduled > 150


async def test_an_arrival_that_is_never_made_is_unanswered_and_none_is_lost_between_its_draw_and_its_call():
    """The generator is stopped while it waits for an arrival of the window that it has drawn."""
    # The schedule is drawn beforehand, whatever the generator comes to.
    drawn = sum(at < 2 for at in Poisson(100.0).times(9, 3))
    assert 170 <= drawn <= 230
    for measured in await busy(0.1, *(Times(0, 2, grace_s) for grace_s in (0.5, 1.0, 2.0, 4.0))):
        assert measured.answered + measured.unanswered == measured.scheduled == drawn
        assert measured.unanswered > 100


async def test_a_generator_that_is_late_measured_itself_also_where_nothing_is_answered():
    """Each prompt takes 4 ms, 500 are wanted a second, and the event loop is never late by more than that."""
    loop = asyncio.get_running_loop()

    def prompts():
        while True:
            loop.clock += 0.004
            yield "one"

    window = await generate(answering(1000.0), Poisson(500.0), prompts(), Times(0, 2, 2), 3, lambda: 0.0)
    assert max(window.lags) < 0.03
    assert measurement_of(Setting("fixed", rate=500.0), 0, window).marks == (FAILED.name, LATE.name)


async def test_prompts_that_end_are_a_fault_of_the_measurement():
    with pytest.raises(RuntimeError, match="StopIteration"):
        await generate(answering(0.1), Poisson(100.0), iter(["one"]), Times(0, 1, 1), 3, lambda: 0.0)


async def test_an_event_loop_that_stands_still_marks_a_closed_load_too():
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        await asyncio.sleep(0.05)
        loop.clock += 0.02
        calls.answered(place, loop.time(), 1, 1)

    assert (await cell(call, Closed(4))).marks == (LATE.name,)


async def test_a_busy_process_marks_its_cells():
    loop = asyncio.get_running_loop()
    window = await generate(answering(0.05), Closed(2), iter(lambda: "", None), TIMES, 0, lambda: 0.9 * loop.time())
    measured = measurement_of(Setting("fixed", concurrency=2), 0, window)
    assert measured.marks == (BUSY.name,)
    assert measured.client_cpu_share == pytest.approx(0.9)


async def test_warm_up_is_in_no_figure_and_has_the_cells_concurrency():
    """The first calls are slow, as on a cold server."""
    under_way, most = 0, []
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def call(prompt, calls, place):
        nonlocal under_way
        under_way += 1
        most.append((loop.time() - began, under_way))
        cold = loop.time() - began < 0.5
        await asyncio.sleep(0.4 if cold else 0.1)
        under_way -= 1
        calls.answered(place, loop.time(), 10, 5)

    measured = await cell(call, Closed(8))
    assert measured.times["latency"].max == pytest.approx(0.1)
    assert measured.calls_per_s == pytest.approx(80.0, abs=2)
    assert max(number for at, number in most if at < 1) == max(number for _, number in most) == 8


async def test_a_call_that_does_not_come_back_is_unanswered_and_not_left_out():
    call = answering(lambda place: 1000.0 if place % 10 == 0 else 0.1)
    measured = await cell(call, Poisson(50.0), slos=[Slo("p85<1s"), Slo("p95<1s")])
    assert measured.unanswered == pytest.approx(measured.scheduled / 10, abs=2)
    assert measured.slo_shares[0] == pytest.approx(0.9, abs=0.02)
    assert measured.goodput == pytest.approx(0.9 * measured.scheduled / 4, rel=0.03)


async def test_a_failed_call_misses_every_objective():
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        await asyncio.sleep(0.01)
        if place % 4:
            calls.answered(place, loop.time(), 1, 1)
        else:
            calls.failed(place, loop.time(), ValueError("the text of somebody"))

    measured = await cell(call, Poisson(100.0), slos=[Slo("p90<1s")])
    assert measured.failed == {"ValueError": pytest.approx(measured.scheduled / 4, abs=1)}
    assert measured.slo_shares[0] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(("every", "marks"), [(50, (FAILED.name,)), (200, ())])
async def test_a_cell_with_more_than_one_failed_call_in_a_hundred_is_marked(every, marks):
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        await asyncio.sleep(0.01)
        if place % every:
            calls.answered(place, loop.time(), 1, 1)
        else:
            calls.failed(place, loop.time(), ValueError())

    measured = await cell(call, Poisson(300.0))
    assert measured.marks == marks
    assert bool(measured.disqualified_by) is bool(marks)
    assert measured.without_answer == sum(measured.failed.values()) > 0


@pytest.mark.parametrize(("every", "marks"), [(50, (BAD.name,)), (200, ())])
async def test_answers_of_which_more_than_one_in_a_hundred_is_bad_disqualify(every, marks):
    """A server that answers nothing is quicker than any other."""
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        await asyncio.sleep(0.01)
        calls.answered(place, loop.time(), 10, 0, is_bad=place % every == 0)

    measured = await cell(call, Poisson(300.0))
    assert measured.marks == marks
    assert measured.bad == pytest.approx(measured.scheduled / every, abs=1)
    assert (best_of(summaries_of([measured])) is None) is bool(marks)


@pytest.mark.parametrize(("text", "bad"), [("", True), ("fine", False)])
async def test_an_empty_answer_of_a_server_is_bad(text, bad):
    server = MockLLM()
    server.when().answer(text)
    begun = await begin(URL, SHORT, QUICK, transport=server.transport, cpu_s=lambda: 0.0)
    measured = await begun.measure(Setting("singles", rate=20.0))
    assert measured.answered > 10
    assert (BAD.name in measured.marks) is bad
    # The server takes ignore_eos, and does not heed it: no answer has the tokens asked for.
    assert begun.target.fields == {}


async def test_callers_of_a_server_that_fails_pause_until_a_call_is_answered():
    begun = []
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def call(prompt, calls, place):
        begun.append(round(loop.time() - began, 6))
        await asyncio.sleep(0.05)
        if place == 6:
            calls.answered(place, loop.time(), 1, 1)
        else:
            calls.failed(place, loop.time(), ConnectionError())

    await cell(call, Closed(1), Times(0, 6, 0))
    pauses = [round(b - a - 0.05, 6) for a, b in zip(begun, begun[1:], strict=False)]
    assert pauses[:9] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.0, 0.1, 0.2]


async def test_the_times_of_a_streamed_answer():
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        calls.sent[place] = loop.time()
        await asyncio.sleep(0.2)
        calls.first[place] = loop.time()
        await asyncio.sleep(0.4)
        calls.answered(place, loop.time(), 10, 5)

    measured = await cell(call, Closed(1), slos=[Slo("ttft p95<250ms"), Slo("tpot p95<50ms")])
    assert measured.times["ttft"].percentiles[0.5] == pytest.approx(0.2)
    # TPOT = (end - first token) / (tokens - 1)
    assert measured.times["tpot"].percentiles[0.5] == pytest.approx(0.1)
    assert measured.slo_shares == (1.0, 0.0)


async def test_an_answer_of_one_token_waits_for_no_second_one():
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        calls.sent[place] = calls.first[place] = loop.time()
        await asyncio.sleep(0.4)
        calls.answered(place, loop.time(), 10, 1 if place % 2 else 0)

    # No tokens at all were told of the other half.
    assert (await cell(call, Closed(1), Times(0, 8, 5), slos=[Slo("tpot p50<50ms")])).slo_shares == (
        pytest.approx(0.5, abs=0.03),
    )


async def test_an_objective_has_its_own_percentile():
    # Calls of 1, 2, … 100 ms.
    call = answering(lambda place: 0.001 * (1 + place % 100))
    figures = (await cell(call, Closed(1), Times(0, 5.04, 1), slos=[Slo("p80<1s")])).times["latency"]
    assert set(figures.percentiles) == set(figures.intervals) == {0.5, 0.8, 0.9, 0.95, 0.99}
    assert figures.percentiles[0.8] == pytest.approx(0.08, abs=0.002)


async def test_a_second_attempt_counts_and_the_first_token_is_that_of_the_answer(session):
    """Half of the requests are refused at once; the first token comes after the pause, too."""
    windows = []
    begun = await session(
        server=SimulatedServer("gpu", faults=["status=503,rate=0.5"], seed=4), times=Times(0.5, 2, 60)
    )
    begun.on_window = lambda setting, repetition, window: windows.append(window)
    measured = await begun.measure(Setting("singles", concurrency=4))
    assert RETRIED.name in measured.marks
    assert 0 < measured.retried < measured.scheduled
    calls = windows[0].calls
    # The first few are plain, until a stream has told that it sends few events.
    streamed = [
        place for place, outcome in enumerate(calls.outcomes) if outcome == 1 and not math.isnan(calls.first[place])
    ]
    assert len(streamed) > calls.outcomes.count(1) / 2
    again = [place for place in streamed if calls.attempts[place] > 1]
    once = [place for place in streamed if calls.attempts[place] == 1]
    assert again and once

    def rests(places):
        # From the first token on, both have the same answers to wait for.
        return [calls.ended[place] - calls.first[place] for place in places]

    assert max(rests(again)) < 2 * max(rests(once))
    assert max(calls.ended[place] - calls.begun[place] for place in again) > 3 * max(rests(once))


@pytest.mark.parametrize(("every", "marks"), [(50, (RETRIED.name,)), (200, ())])
async def test_a_cell_with_more_than_one_call_in_a_hundred_that_was_sent_again_is_marked(every, marks):
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        calls.attempts[place] = 1 if place % every else 2
        await asyncio.sleep(0.01)
        calls.answered(place, loop.time(), 1, 1)

    measured = await cell(call, Poisson(300.0))
    assert measured.marks == marks
    assert measured.retried == pytest.approx(measured.scheduled / every, abs=2)


async def test_the_servers_part_of_a_latency_runs_from_the_first_sending():
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        await asyncio.sleep(0.1)
        calls.sent[place] = loop.time()
        await asyncio.sleep(0.2)
        calls.answered(place, loop.time(), 10, 5)

    times = (await cell(call, Closed(1))).times
    parts = [times[name].percentiles[0.5] for name in ("late", "queued", "server", "latency")]
    assert parts == pytest.approx([0.0, 0.1, 0.2, 0.3])


async def test_nothing_is_left_in_flight():
    await cell(answering(lambda place: math.inf if place % 3 == 0 else 0.1), Closed(9), Times(0.5, 1, 0.5))
    assert (asyncio.all_tasks() - {asyncio.current_task()}) == set()


async def test_throughput_is_that_of_the_window_under_an_overload():
    """The server makes 10 calls a second, 20 arrive: the backlog is no throughput."""
    free = asyncio.Semaphore(1)
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        async with free:
            await asyncio.sleep(0.1)
        calls.answered(place, loop.time(), 10, 10)

    measured = await cell(call, Poisson(20.0), Times(2, 10, 60))
    assert measured.calls_per_s == pytest.approx(10.0, abs=0.2)
    assert measured.tokens_per_s == pytest.approx(200.0, abs=4)
    assert measured.unanswered == 0
    assert measured.times["latency"].percentiles[0.95] > 5
    assert measured.marks == (BEHIND.name,)


@pytest.mark.parametrize("rate", [9.0, 12.5])
async def test_a_rate_above_the_servers_speed_is_marked_though_all_calls_keep_the_objective(rate):
    """The server makes 10 calls a second; the window is too short for a latency of 20 s."""
    free = asyncio.Semaphore(1)
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        async with free:
            await asyncio.sleep(0.1)
        calls.answered(place, loop.time(), 10, 10)

    measured = await cell(call, Poisson(rate), Times(5, 30, 60), slos=[Slo("p95<20s")])
    assert measured.slo_shares == (1.0,)
    assert measured.marks == ((BEHIND.name,) if rate > 10 else ())


@pytest.mark.parametrize("warm_up_s", [0.5, 5.0])
async def test_a_steady_load_is_seldom_taken_for_one_that_falls_behind(dice, warm_up_s):
    """Answers take 2 s on the mean, also longer than the warm-up, and as many are missing at first."""
    marked = 0
    for seed in range(60):
        call = answering(lambda place: dice.expovariate(0.5))
        loads = Poisson(20.0), map(str, iter(int, 1)), Times(warm_up_s, 10, 60)
        window = await generate(call, *loads, seed, lambda: 0.0)
        marked += measurement_of(Setting("fixed", rate=20.0), 0, window).fell_behind
    assert marked <= 1


async def test_a_closed_load_cannot_fall_behind():
    assert (await cell(answering(lambda place: 0.1 + place / 100), Closed(9))).marks == ()


@pytest.mark.parametrize("window_s", [3.0, 4.0, 4.5, 5.0])
async def test_the_throughput_of_rounds_does_not_depend_on_the_windows_cut(window_s):
    """The server answers four callers at once, every 1.572 s."""
    measured = await cell(answering(1.572), Closed(4), Times(0.7, window_s, 5), slos=[Slo("p50<2s")])
    assert measured.in_flight_mean == pytest.approx(4)
    assert measured.calls_per_s == measured.goodput == pytest.approx(4 / 1.572)
    assert measured.tokens_per_s == pytest.approx(4 / 1.572 * 15)
    assert measured.output_tokens_per_s == pytest.approx(4 / 1.572 * 5)


async def test_goodput_of_a_closed_load_is_the_share_within_the_objective():
    call = answering(lambda place: 0.3 if place % 4 == 0 else 0.1)
    measured = await cell(call, Closed(1), Times(0, 6, 5), slos=[Slo("p50<200ms")])
    # Four calls in 0.6 s, three of them within the objective.
    assert measured.calls_per_s == pytest.approx(4 / 0.6, abs=0.2)
    assert measured.goodput == pytest.approx(measured.calls_per_s * measured.slo_shares[0])
    assert measured.slo_shares[0] == pytest.approx(0.75, abs=0.02)


async def test_a_closed_load_with_failed_calls_counts_the_answers_of_the_window():
    loop = asyncio.get_running_loop()

    async def call(prompt, calls, place):
        await asyncio.sleep(0.4)
        if place % 2:
            calls.answered(place, loop.time(), 10, 5)
        else:
            calls.failed(place, loop.time(), ConnectionError())

    # An answer and a failure take 0.9 s, with the pause.
    assert (await cell(call, Closed(1), Times(0, 9, 5))).calls_per_s == pytest.approx(1 / 0.9, abs=0.12)


async def test_hits_of_the_prefix_cache_and_other_work_are_told():
    measured = await cell(answering(0.05), Closed(2), cache_hit_share=0.3, others=True)
    assert measured.marks == (CACHED.name, OTHERS.name)
    assert not measured.measured_the_client


@pytest.mark.parametrize(
    ("page", "waited_s", "marks"),
    [
        (lambda at: ServerLoad(running=0.0, generation_tokens=5.0), 0.0, ()),
        (lambda at: ServerLoad(running=9.0 if at < 1 else 0.0, generation_tokens=at), 1.0, ()),
        # The sequences of the last step, cancelled since: nothing is generated.
        (lambda at: ServerLoad(running=9.0, generation_tokens=5.0), 2.0, ()),
        (lambda at: ServerLoad(running=9.0, generation_tokens=5.0 + at), 5.0, (OTHERS.name,)),
        (lambda at: ServerLoad(waiting=1.0), 5.0, (OTHERS.name,)),
        (lambda at: None, 0.0, ()),
    ],
)
async def test_a_cell_waits_for_an_idle_server_and_knows_a_page_that_stands_still(
    session, monkeypatch, page, waited_s, marks
):
    begun, loop = await session(times=Times(0.1, 0.5, 5)), asyncio.get_running_loop()
    began, windows = loop.time(), []

    async def look_at(target):
        return ServerInfo(URL, load=page(loop.time() - began))

    monkeypatch.setattr("batchclient.bench.session.look_at", look_at)
    begun.on_window = lambda setting, repetition, window: windows.append(window)
    measured = await begun.measure(Setting("singles", concurrency=2))
    assert windows[0].begins - 0.1 - began == pytest.approx(waited_s, abs=0.26)
    assert measured.marks == marks


async def test_reuse_on_purpose_is_no_mark():
    assert (await cell(answering(0.05), Closed(2), cache_hit_share=0.3, prefix_reuse=True)).marks == ()


async def test_the_ramp_is_the_time_to_the_cells_own_speed():
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def call(prompt, calls, place):
        await asyncio.sleep(1.0 if loop.time() - began < 4 else 0.1)
        calls.answered(place, loop.time(), 1, 1)

    # From 4 s on 40 calls a second; two seconds of them are needed.
    assert (await cell(call, Closed(4), Times(6, 10, 5))).ramp_s == pytest.approx(6.0, abs=0.5)


async def test_prompts_never_come_twice_in_a_session(session):
    server = SimulatedServer("gpu")
    seen = []
    begun = await session(server=server)
    make = begun.workload.prompt

    class Noting:
        def __init__(self, workload):
            self.workload = workload

        def __getattr__(self, name):
            return getattr(self.workload, name)

        def prompt(self, number):
            seen.append(make(number))
            return seen[-1]

    begun.workload = Noting(begun.workload)
    await begun.measure(Setting("fixed", concurrency=4))
    await begun.measure(Setting("fixed", concurrency=4), 1)
    assert len(seen) == len(set(seen)) > 50


async def test_a_server_that_refuses_ignore_eos_is_measured_without(session):
    refusing = SimulatedServer("gpu", faults=["status=400,count=1"])
    assert (await session(server=refusing)).target.fields == {}
    assert (await session()).target.fields == {"ignore_eos": True}


async def test_an_embedding_has_no_first_token(session):
    workload = replace((await session()).workload, call="embed")
    assert set((await (await session(workload=workload)).measure(Setting("adaptive", concurrency=4))).times) == {
        "latency",
        "late",
        "queued",
        "server",
    }
