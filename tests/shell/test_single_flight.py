"""``batching=Batching(single_flight=True)``, at literal times: one request for equal calls, each caller's own end; without it nothing changes."""

import asyncio
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shell.clocks import run
from tests.shell.scripted import ScriptedTransport, answer_to, echo, error, make_client, settle
from tests.shell.test_retries import Says

from batchclient import (
    Batching,
    CallAborted,
    ClientClosed,
    Completion,
    DeadlineExceeded,
    Queue,
    QueueFull,
    RateLimited,
)

SHARING = {"batching": Batching(single_flight=True)}
NEVER = 1e4


class Play:
    """Calls at literal times, a server that answers at literal times, and what became of both.

    Args:
        calls: by name, what a call is, and when: ``at``, ``leaves`` (its caller goes), ``is_row`` (of a map, whose
            time runs from its grant).
        replies: when each request is answered, and with what if not with an echo. Further ones are never answered.
        meanwhile: functions of the client, by their time.
        settings: the client's.
    """

    def __init__(self, calls, *replies, meanwhile=None, **settings):
        self.calls, self.meanwhile = calls, meanwhile or {}
        self.replies = [reply if isinstance(reply, tuple) else (reply, echo) for reply in replies]
        self.settings = {**SHARING, **settings}
        self.ends = {}
        """By name: how a call ended, and when; those that left have none."""

    async def run(self):
        self.server = ScriptedTransport(*[reply for _, reply in self.replies], held=True)
        self.began = anyio.current_time()
        async with make_client(self.server, **self.settings) as client, anyio.create_task_group() as group:
            self.client = client
            group.start_soon(self._serve, group)
            for at, function in self.meanwhile.items():
                group.start_soon(self._meanwhile, at, function)
            async with anyio.create_task_group() as callers:
                for name, call in self.calls.items():
                    callers.start_soon(partial(self._call, name, **call))
            await settle()
            self.statistics, self.states = client.statistics(), self.server.states
            group.cancel_scope.cancel()
        return self

    async def _until(self, at):
        await anyio.sleep_until(self.began + at)

    async def _serve(self, group):
        for number, (at, _) in enumerate(self.replies):
            await self.server.arrived(number + 1)
            group.start_soon(self._release, self.server.sent[number], at)

    async def _release(self, sent, at):
        await self._until(at)
        sent.release()

    async def _meanwhile(self, at, function):
        await self._until(at)
        result = function(self.client)
        if result is not None:
            await result

    async def _call(self, name, at=0.0, leaves=NEVER, is_row=False, prompt="p", **asked):
        asked = {"temperature": 0, **asked}
        await self._until(at)
        with anyio.CancelScope(deadline=self.began + leaves):
            try:
                if is_row:
                    (end,) = await self.client.batch_map([prompt], "{}", return_exceptions=True, **asked)
                else:
                    end = await self.client.complete(prompt, **asked)
            except Exception as caught:
                end = caught
            self.ends[name] = end, round(anyio.current_time() - self.began, 3)

    @property
    def times(self):
        """When each call ended."""
        return {name: at for name, (_, at) in sorted(self.ends.items())}

    @property
    def kinds(self):
        return {name: type(end) for name, (end, _) in sorted(self.ends.items())}

    @property
    def counts(self):
        counted = ("submitted", "succeeded", "failed", "cancelled", "shared")
        return {name: count for name in counted if (count := getattr(self.statistics, name))}


async def play(calls, *replies, **more):
    return await Play(calls, *replies, **more).run()


def at(*times, **every):
    """Calls ``a``, ``b``, … at these times."""
    return {name: {"at": time, **every} for name, time in zip("abcdef", times, strict=False)}


async def test_equal_calls_share_a_request_and_have_their_answers():
    story = await play(at(0, 0, 0.5, 0.5), 1.0)
    assert story.times == dict.fromkeys("abcd", 1.0)
    answers = [end for end, _ in story.ends.values()]
    assert [answer.text for answer in answers] == [answer_to("p")] * 4
    assert len({id(answer) for answer in answers}) == len({id(answer.choices[0]) for answer in answers}) == 4
    answers[0].usage.completion_tokens = 99
    assert answers[1].usage.completion_tokens == 2
    assert story.server.prompts == [["p"]]
    assert story.counts == {"submitted": 4, "succeeded": 4, "shared": 3}
    assert story.statistics.completion_tokens == 2


async def test_a_call_joins_what_is_queued():
    story = await play({"other": {"prompt": "q"}, **at(0.1, 0.2)}, 1.0, 2.0, limit=1)
    assert story.times == {"a": 2.0, "b": 2.0, "other": 1.0}
    assert story.server.prompts == [["q"], ["p"]]


@pytest.mark.parametrize(
    ("settings", "other"),
    [
        ({"batching": Batching()}, {}),
        (SHARING, {"prompt": "q"}),
        (SHARING, {"max_tokens": 5}),
        (SHARING, {"tenant": "t"}),
        (SHARING, {"priority": 1}),
        (SHARING, {"temperature": 0.1}),
        (SHARING, {"kv_transfer_params": {}}),
    ],
    ids=str,
)
async def test_nothing_is_shared_unless_it_is_asked_for(settings, other):
    story = await play({"a": {}, "b": other, "c": {"at": 0.1, **other}}, *[1.0] * 5, **settings)
    assert set(story.kinds.values()) == {Completion}
    sent = [prompt for prompts in story.server.prompts for prompt in prompts]
    # Two of the other kind share with each other where they may.
    shares = settings is SHARING and not other.keys() & {"temperature", "kv_transfer_params"}
    assert (len(sent), story.statistics.shared) == ((2, 1) if shares else (3, 0))


async def test_the_first_may_leave_and_the_others_are_answered():
    story = await play({"a": {"leaves": 0.5}, "b": {}}, 1.0)
    assert story.times == {"b": 1.0}
    assert story.counts == {"submitted": 2, "succeeded": 1, "cancelled": 1, "shared": 1}


async def test_the_connection_closes_when_the_last_has_left():
    # What is being ended is not joined.
    story = await play({"a": {"leaves": 0.4}, "b": {"leaves": 0.5}, "c": {"at": 0.6}}, NEVER, 1.0)
    assert story.times == {"c": 1.0}
    assert story.states == ["cancelled", "read"]
    assert story.counts == {"submitted": 3, "succeeded": 1, "cancelled": 2, "shared": 1}


async def test_each_has_its_own_deadline_and_the_latest_counts():
    story = await play({"a": {"timeout_s": 1}, "b": {"at": 0.1, "timeout_s": 2.9}, "c": {"at": 0.1, "timeout_s": 1.9}})
    assert story.times == {"a": 1.0, "b": 3.0, "c": 2.0}
    assert set(story.kinds.values()) == {DeadlineExceeded}
    first = story.ends["a"][0]
    assert (first.attempt, "while the server worked" in str(first)) == (1, True)
    assert story.states == ["cancelled"]
    assert story.counts == {"submitted": 3, "failed": 3, "shared": 2}


async def test_a_caller_without_a_deadline_keeps_it_going():
    story = await play({"a": {"timeout_s": 1}, "b": {"at": 0.5}}, 200.0)
    assert story.times == {"a": 1.0, "b": 200.0}
    assert story.counts == {"submitted": 2, "succeeded": 1, "failed": 1, "shared": 1}


async def test_rows_who_share_a_call_have_their_time_from_its_grant():
    calls = {
        "other": {"prompt": "q"},
        "a": {"at": 0.1, "timeout_s": 1, "is_row": True},
        "b": {"at": 0.1, "timeout_s": 2, "is_row": True},
        # Who joins what the server works on has its time from then.
        "c": {"at": 100.5, "timeout_s": 1, "is_row": True},
        "d": {"at": 103.0, "timeout_s": 1.5, "is_row": True},
    }
    # A refusal for load takes back the time; a failure does not.
    replies = [100.0, (101.9, error(429, headers={"retry-after": "8"})), (110.0, error(500)), NEVER]
    story = await play(calls, *replies, limit=1, retry=Says(8.0, 0.1))
    # Who asked to be left alone is asked again a moment later.
    expected = {"a": 101.0, "b": 111.9, "c": 101.5, "d": 111.4, "other": 100.0}
    assert story.times == pytest.approx(expected, abs=0.1)
    assert [type(end) for end, _ in story.ends.values()].count(DeadlineExceeded) == 4
    assert story.states[-1] == "cancelled"


@pytest.mark.parametrize("more", [{}, {"timeout_s": 7}])
@pytest.mark.parametrize("row_is_first", [True, False])
async def test_a_row_and_a_call_of_another_kind_each_end_at_their_own_time(more, row_is_first):
    calls = {"row": {"timeout_s": 3, "is_row": True}, "call": more}
    story = await play(calls if row_is_first else dict(reversed(calls.items())), 50.0)
    assert story.times == {"row": 3.0, "call": 7.0 if more else 50.0}
    assert len(story.server.sent) == 1


def test_time_that_is_over_while_the_call_is_made_ends_it_alone():
    async def main():
        loop = asyncio.get_running_loop()
        is_at = loop.time
        passing = 0.01

        def time():
            """Some passes between two looks at the clock."""
            loop.clock += passing
            return is_at()

        loop.time = time
        async with make_client(ScriptedTransport(), **SHARING) as client:
            with pytest.raises(DeadlineExceeded):
                await client.complete("p", temperature=0, timeout_s=0.015)
            passing = 0.0
            assert (await client.complete("p", temperature=0, timeout_s=9)).text == answer_to("p")
            return client.statistics()

    statistics = run(main)
    assert (statistics.submitted, statistics.succeeded, statistics.failed, statistics.shared) == (2, 1, 1, 0)


async def test_each_has_an_error_of_its_own():
    refusal = error(429, headers={"retry-after": "7"}, kind="busy")
    story = await play(at(0, 0), (1.0, refusal), retry=Says())
    one, other = (end for end, _ in story.ends.values())
    assert one is not other
    for each in (one, other):
        assert (type(each), each.message, each.attempt) == (RateLimited, "429: no", 1)
        assert (each.status, each.retry_after_s, each.code) == (429, 7.0, "busy")
    assert story.counts == {"submitted": 2, "failed": 2, "shared": 1}


async def test_a_retry_is_shared_too():
    story = await play(at(0, 1.2), (1.0, error(500)), 2.0, retry=Says(0.5))
    assert {name: end.attempts for name, (end, _) in story.ends.items()} == {"a": 2, "b": 2}
    assert story.server.prompts == [["p"], ["p"]]


async def test_a_full_queue_refuses_all_of_a_flight():
    calls = {"x": {"prompt": "x"}, "y": {"at": 0.1, "prompt": "y"}, "a": {"at": 0.2}, "y2": {"at": 0.3, "prompt": "y"}}
    story = await play(calls, 1.0, 2.0, limit=1, queue=Queue(max_calls=1, when_full="raise"))
    # Joining takes no place.
    assert story.kinds == {"a": QueueFull, "x": Completion, "y": Completion, "y2": Completion}
    assert story.counts == {"submitted": 4, "succeeded": 3, "failed": 1, "shared": 1}


async def test_abort_ends_all():
    story = await play(at(0, 0), meanwhile={0.5: lambda client: client.abort()})
    assert (story.kinds, story.times) == ({"a": CallAborted, "b": CallAborted}, {"a": 0.5, "b": 0.5})
    assert story.counts == {"submitted": 2, "failed": 2, "shared": 1}


async def test_nobody_joins_a_client_that_drains():
    story = await play(at(0, 0.6), 1.0, meanwhile={0.5: lambda client: client.drain()})
    assert (story.kinds, story.times) == ({"a": Completion, "b": ClientClosed}, {"a": 1.0, "b": 0.6})


async def test_labels_of_one_caller_are_not_sent_for_another():
    calls = {"x": {"prompt": "x"}, "a": {"at": 0.1, "user": "a"}, "b": {"at": 0.1, "user": "b"}}
    story = await play(calls | {"c": {"at": 3.0, "user": "c"}}, 1.0, 2.0, 4.0, limit=1)
    assert [sent.body.get("user") for sent in story.server.sent] == [None, None, "c"]


async def test_a_caller_that_joined_is_told_its_own_time():
    story = await play({"a": {}, "joined": {"at": 4.0, "timeout_s": 1}}, 9.0)
    assert str(story.ends["joined"][0]) == (
        "the call's timeout_s passed while the server worked on it: 0 s in the queue, 1 s in 1 attempt"
    )


@pytest.mark.parametrize(
    ("leaver", "answered_in"), [("c", [4.0, 3.0]), ("a", [3.0, 2.0])], ids=["a later one leaves", "the first leaves"]
)
async def test_callers_of_a_shared_request_each_have_their_time(leaver, answered_in):
    calls = at(0, 1, 2)
    calls[leaver]["leaves"] = 2.5
    story = await play(calls, 4.0)
    histograms = story.statistics.histograms
    ends = {outcome: (each.count, each.sum) for (_, outcome), each in histograms["call_duration_seconds"].items()}
    left_after = 2.5 - calls[leaver]["at"]
    assert ends == {"succeeded": (2, pytest.approx(sum(answered_in))), "cancelled": (1, pytest.approx(left_after))}
    # One of them was queued and sent.
    assert histograms["queue_duration_seconds"]["completion",].count == 1


async def test_documents_of_a_map_share_too():
    server = ScriptedTransport()
    async with make_client(server, **SHARING) as client:
        answers = await client.batch_map(["a", "b", "a", "a"], "{}", temperature=0)
        assert [answer.text for answer in answers] == [answer_to(prompt) for prompt in ("a", "b", "a", "a")]
        assert [prompt for prompts in server.prompts for prompt in prompts] == ["a", "b"]
        rows = client.stream_map(["c"] * 10, "{}", temperature=0)
        await anext(rows)
        await rows.aclose()
        await settle()
        statistics = client.statistics()
        assert (statistics.queued, statistics.in_flight) == (0, 0)


moments = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.5])
callers = st.fixed_dictionaries(
    {"at": moments, "prompt": st.sampled_from("pq"), "is_row": st.booleans()},
    optional={"timeout_s": st.sampled_from([0.5, 1.0, 4.0]), "leaves": moments},
)
answers = st.tuples(moments, st.sampled_from([None, None, error(429), error(500)]))


@given(st.lists(callers, max_size=8), st.lists(answers, max_size=6), st.integers(1, 3), st.sampled_from([None, 0.2]))
def test_every_call_ends_once_whatever_happens(calls, replies, limit, delay):
    calls = {f"{number}": call for number, call in enumerate(calls)}
    for call in calls.values():
        if "leaves" in call:
            call["leaves"] += call["at"]
    replies = [reply if reply[1] else reply[0] for reply in replies]
    story = run(
        Play(calls, *replies, meanwhile={9.0: lambda client: client.aclose()}, limit=limit, retry=Says(delay)).run
    )
    for name, call in calls.items():
        ended_at = story.times.get(name, call.get("leaves", NEVER))
        assert call["at"] <= ended_at <= 9.0, "it ends, or its caller left"
        assert call["is_row"] or ended_at <= call["at"] + call.get("timeout_s", 9.0), "a deadline is kept"
    seen = story.statistics
    assert seen.submitted == seen.succeeded + seen.failed + seen.cancelled
    assert (seen.in_flight, seen.queued, seen.waiting, seen.backing_off) == (0, 0, 0, 0)
    observed = dict.fromkeys(("succeeded", "failed", "cancelled"), 0)
    for (_, outcome), histogram in seen.histograms["call_duration_seconds"].items():
        observed[outcome] += histogram.count
    assert observed == {outcome: getattr(seen, outcome) for outcome in observed}
    assert sum(seen.errors.values()) == seen.failed
