"""What must hold when a run is over.

- Every caller has ended, in time, and with what it must have: its own answer in full, or an error whose cause was there.
- No call was sent more often than attempts, splits and free repetitions allow.
- The histograms have what the counters count: each call, request and token once.
- Nothing is left: no call, permit, task, timer or open request, and every transport was closed.
"""

import math
from collections import Counter

from batchclient import (
    BadRequest,
    BatchClientError,
    CallAborted,
    ClientClosed,
    Completion,
    ConnectFailed,
    DeadlineExceeded,
    DemuxError,
    DialectError,
    QueueFull,
)
from tests.simulation.pairs import Fault

__all__ = ["check_call", "check_histograms", "check_nothing_is_left"]

_PATIENCE_S = 60.0
"""The default of ``outage_patience_s``."""
_IN_TIME_S = 0.05
"""How late a caller may hear of its deadline."""
_COSTS_NO_ATTEMPT = frozenset({Fault.REFUSED, Fault.NO_STREAMS, Fault.SLOW})
_MAY_BE_FREE = frozenset({Fault.LIMITED, Fault.LIMITED_FOR, Fault.UNAVAILABLE, Fault.UNAVAILABLE_FOR})
_NAMES_NO_CULPRIT = frozenset({Fault.BROKEN, Fault.LISTS_FAIL, Fault.ERROR_EVENT, Fault.CUT_BODY, Fault.CUT_STREAM})


def check_nothing_is_left(world):
    """No call, permit, task, timer or request is left, and every transport is closed."""
    watch = world.watch
    assert watch.core.idle and not watch.open, "something is left"
    statistics = watch.core.statistics()
    assert statistics.in_flight == statistics.abandoned == statistics.queued == statistics.waiting == 0
    assert statistics.backing_off == 0
    assert watch.core.next_deadline() is None
    for server in world.servers.values():
        assert not server.open, f"{server.name} still works on something"
        assert server.closed, "a transport is open"
    assert not world.loop.alive(), f"tasks or timers are left: {world.loop.alive()}"


def check_histograms(world):
    """The counts and sums of the histograms are those of the counters, and of what went through the core."""
    watch = world.watch
    now = watch.core.statistics()
    families = {name: list(family.values()) for name, family in now.histograms.items()}
    counts = {name: sum(each.count for each in family) for name, family in families.items()}
    sums = {name: sum(each.sum for each in family) for name, family in families.items()}
    assert counts["batch_size"] == counts["request_duration_seconds"] == now.batches == sum(now.outcomes.values())
    assert sums["batch_size"] == sum(size * count for size, count in now.list_sizes.items())
    calls = Counter()
    for (_, outcome), histogram in now.histograms["call_duration_seconds"].items():
        calls[outcome] += histogram.count
    ended = {"succeeded": now.succeeded, "failed": now.failed, "cancelled": now.cancelled}
    assert {outcome: calls[outcome] for outcome in ended} == ended and sum(ended.values()) == now.submitted
    assert sum(now.errors.values()) == now.failed
    assert counts["queue_duration_seconds"] == len(watch.first_sent)
    assert math.isclose(sums["queue_duration_seconds"], sum(watch.first_sent.values()), abs_tol=1e-6)
    assert counts["time_to_first_token_seconds"] == watch.first_tokens >= counts["time_per_output_token_seconds"]
    assert sums["prompt_tokens"] == now.prompt_tokens and sums["completion_tokens"] == now.completion_tokens
    tokens = Counter()
    for (_, _, direction), count in now.tokens.items():
        tokens[direction] += count
    assert (tokens["prompt"], tokens["completion"]) == (now.prompt_tokens, now.completion_tokens)
    assert sum(now.changes.values()) >= len(now.adjustments)


def check_call(world, call):
    """A caller ended once, in time, after no more requests than allowed, and with what it must have."""
    result, plan = call.result, call.plan
    name = f"call {plan.prompt[-40:]!r}"
    assert call.task.done()
    if call.request is not None:
        assert call.sends == call.request.attempts, (name, call.sends, call.request.attempts)
        ended = world.watch.ended[call.request.seq]
        assert ended == 1, f"{name} ended {ended} times"
    repeated = call.hits.total() + call.moves
    assert call.sends <= 1 + repeated, f"{name} was sent {call.sends} times and failed {repeated} times"
    free = call.moves + sum(call.hits[fault] for fault in _COSTS_NO_ATTEMPT)
    # The first list of a server is a probe: a reply that does not fit costs nothing, on as many servers as there are.
    free += min(call.hits[Fault.WRONG_INDEX] + call.hits[Fault.INDEX_TWICE] + call.hits[Fault.CUT_STREAM], 4)
    # Of a list that names no culprit a member goes alone, up to three times, and what is left of it once without our fields.
    # After another list's failure one is enough for its first turn alone.
    blind = sum(call.hits[fault] for fault in _NAMES_NO_CULPRIT)
    free += 4 if blind > 1 else blind
    # Nor does a refusal for load while the server takes other work, and its list goes in halves.
    free += min(sum(call.hits[fault] for fault in _MAY_BE_FREE), 19)
    splits = math.ceil(math.log2(call.longest_list))
    assert call.sends <= world.plan.max_attempts + splits + free, f"{name} was sent too often"
    if plan.timeout_s is not None:
        deadline = call.made_at + plan.timeout_s
        assert call.ended_at <= deadline + _IN_TIME_S, f"{name} ended {call.ended_at - deadline:.3f} s late"
    match result:
        case None:
            assert call.cancelled
        case Completion():
            pass
        case QueueFull():
            assert world.plan.settings["queue"].when_full == "raise"
        case ClientClosed():
            assert world.plan.ending != "wait"
        case CallAborted():
            assert world.aborts
        case DeadlineExceeded():
            assert plan.timeout_s is not None
            in_time = call.ended_at >= deadline - 1e-6
            assert in_time or "cannot be met" in result.message, f"{name} ended before its deadline"
        case BatchClientError() if "the call's timeout_s" in result.message:
            # The server asks for a rest that lasts longer.
            assert plan.timeout_s is not None and call.ended_at < deadline
            assert result.retry_after_s, f"{name} ended early for no rest: {result!r}"
        case BatchClientError() if "outage_patience_s" in result.message:
            waited_s, patience_s = call.ended_at - call.made_at, _PATIENCE_S
            assert waited_s >= patience_s - 1e-6, f"{name} was given up after {waited_s:.3f} s of an outage"
        case BadRequest():
            assert plan.bad or call.refused_alone, f"{name} was refused for another's fault: {result!r}"
        case ConnectFailed():
            assert call.hits[Fault.REFUSED]
        case DialectError() if (
            call.hits[Fault.CUT_BODY] + call.hits[Fault.WRONG_INDEX] >= 2 and "not JSON" in result.message
        ):
            # What breaks off twice is not tried a third time; nor what breaks off once, and lacks a choice once.
            pass
        case DemuxError() if call.hits[Fault.WRONG_INDEX] and "n=2 " in plan.prompt and "1 of 2" in result.message:
            # One choice for a call alone: the server seems to ignore n, and would do so again.
            pass
        case DemuxError() if "n=2 " in plan.prompt and "one answer where several" in result.message:
            # A server did so twice, and never gave two.
            assert sum(each.hits[Fault.WRONG_INDEX] for each in world.calls if "n=2 " in each.plan.prompt) >= 2
        case _:
            used = call.hits.total() - call.hits[Fault.SLOW]
            assert used >= world.plan.max_attempts, f"{name} gave up after {used} failures: {result!r}"
