"""The sums of one reply's answers, in one pass: a call's cost is counted in microseconds."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from batchclient._core.histograms import Recorder
from batchclient._core.messages import Batch, Request, RequestState
from batchclient.health import Health, health_of
from batchclient.types import Completion

__all__ = ["Tally", "tick_off"]

_IN_FLIGHT, _DONE = RequestState.IN_FLIGHT, RequestState.DONE  # a member looked up in its class costs 60 ns


@dataclass(slots=True)
class Tally:
    """The sums of some answers of a batch.

    Args:
        count: the answers.
        resolved: those with a waiting caller.
        watched: how many of these have a deadline, or had one.
        prompt_tokens: of all answers, by the server's count.
        made_tokens: output tokens of all answers, likewise.
        used_tokens: output tokens of ``resolved``.
        wasted_tokens: prompt and output tokens of the answers whose callers have gone.
        first_tokens_s: the sum of the times to first token; 0 if unknown.
        has_first_tokens: whether any answer's time to first token is known.
    """

    count: int
    resolved: list[tuple[Request, Completion]]
    watched: int
    prompt_tokens: int
    made_tokens: int
    used_tokens: int
    wasted_tokens: int
    first_tokens_s: float
    has_first_tokens: bool


def tick_off(
    batch: Batch,
    answers: list[tuple[int, Completion]],
    recorders: tuple[Recorder, Recorder, Recorder],
    health: dict[Health, int] | None,
    now: float,
) -> Tally:
    """Tick off some answers of a batch, whose requests are done afterwards; return their sums.

    Args:
        answers: (position in the batch, answer).
        recorders: histograms of prompt tokens, of output tokens, and of the times of calls.
        health: the counts of generated answers by health; ``None``: nothing is generated.
        now: the scheduler's time.
    """
    prompts, outputs, calls = recorders
    prompt_counts, output_counts, call_counts = prompts.counts, outputs.counts, calls.counts
    prompt_bounds, output_bounds, call_bounds = prompts.bounds, outputs.bounds, calls.bounds
    resolved: list[tuple[Request, Completion]] = []
    prompt_tokens = made_tokens = used_tokens = wasted_tokens = watched = 0
    calls_s, first_tokens_s, has_first_tokens = 0.0, 0.0, False
    requests, answered, sent_at, in_flight = batch.requests, batch.answered, batch.sent_at, batch.load.in_flight
    for position, completion in answers:
        request = requests[position]
        answered[position] = 1
        usage = completion.usage
        if usage is not None:
            asked, made = usage.prompt_tokens, usage.completion_tokens
            prompt_tokens += asked
            prompt_counts[bisect_left(prompt_bounds, asked)] += 1
        else:
            made = completion.counted_tokens or 0
        if made:
            made_tokens += made
            output_counts[bisect_left(output_bounds, made)] += 1
        if request.state is _IN_FLIGHT:
            resolved.append((request, completion))
            if health is not None:
                health[health_of(completion)] += 1
            watched += request.watched
            used_tokens += made
            completion.queued_s = sent_at - request.queued_at
            request.in_flight = in_flight
            if not request.carries:
                whole_s = now - request.queued_at
                call_counts[bisect_left(call_bounds, whole_s)] += 1
                calls_s += whole_s
        else:
            wasted_tokens += made if usage is None else usage.total_tokens
        if completion.time_to_first_token_s is not None:
            first_tokens_s += completion.time_to_first_token_s
            has_first_tokens = True
        request.state = _DONE
        request.batch = None
    prompts.sum += prompt_tokens
    outputs.sum += made_tokens
    calls.sum += calls_s
    return Tally(
        len(answers), resolved, watched, prompt_tokens, made_tokens, used_tokens, wasted_tokens, first_tokens_s,
        has_first_tokens,
    )  # fmt: skip
