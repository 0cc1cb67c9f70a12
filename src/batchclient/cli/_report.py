"""The end of ``batchclient map`` on stderr: the complaints, and a summary."""

from __future__ import annotations

import os

from batchclient import Histogram
from batchclient._maps.kinds import UNUSABLE, Kinds
from batchclient.cli._cost import written_cost
from batchclient.cli._job import Job
from batchclient.cli._kept import Kept
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import in_options
from batchclient.cli._words import say
from batchclient.jobs.output import Output, reason_of
from batchclient.options import AdaptiveLimit

__all__ = ["report"]

_MOST_FREQUENT = 5
"""Kinds of failed rows that are told, at most."""
_LONGEST = 200
_MANY = 0.05
"""From this share on a kind of bad answers is told before all else."""


def report(job: Job, options: MapOptions, output: Output, kept: Kept | None = None) -> None:
    """Report on stderr how the job ended. ``--quiet`` leaves the complaints and the rows' failures."""
    end, bad = job.giving_up.end, job.kinds.bad
    for complaint in _complaints(job, output):
        say(complaint, event="notice" if end is not None and end.is_wanted else "error")
    if job.reader_is_gone:
        return
    failures = [in_options(line) for line in _failures(job.failures)]
    facts = {
        "rows": output.written,
        "failed": job.failures.failed,
        **bad,
        "reused": job.counts.reused,
        "seconds": round(job.seconds, 3),
        "status": int(job.status),
    }
    if options.quiet:
        if failures:
            say(f"failed: {job.failures.failed:,}", *failures, event="summary", **facts)
        return
    many = [(kind, count) for kind, count in bad.most_common() if count > _MANY * job.kinds.answers]
    told = " and ".join(f"{100 * count / job.kinds.answers:.3g} % {kind}" for kind, count in many)
    starts = [
        "Interrupted" if job.signal is not None and not job.is_whole else "",
        f"bad answers: {told}" if told else "",
    ]
    start = "".join(f"{each}: " for each in starts if each)
    lost = f"; in the end {' and '.join(job.out_of_use)}" if job.out_of_use else ""
    # Invalid answers are among the failed rows.
    more = [
        f"  {count:,} {kind}, such as {job.kinds.examples[kind][0]}"
        for kind, count in bad.most_common()
        if kind != "invalid"
    ]
    more += [] if kept is None else _of_journal(job, kept)
    more += _of_thinking(job, options)
    more += _of_truncated(job, options, kept)
    more += _reached(job, options)
    more += _of_servers(job, options)
    say(f"{start}{_counts(job, output)}{lost}", *failures, *more, event="summary", **facts)


def _complaints(job: Job, output: Output) -> list[str]:
    told = [job.fault] if job.fault else []
    if job.output_error is not None and not job.reader_is_gone:
        told.append(f"{output.name}: the output cannot be written: {reason_of(job.output_error)}")
    if job.journal_error is not None:
        told.append(str(job.journal_error))
    if job.giving_up.end is not None:
        # A pilot's rows are among the job's, once that has begun.
        tried = max(job.kinds.rows, 0 if job.pilot is None else job.pilot.taken.rows)
        left = "" if job.expected is None else f"; rows left out: {max(0, job.expected - tried):,}"
        told.append(f"{job.giving_up.end.words}{left}")
    elif job.broken is not None:
        there = f"; all rows are in {output.where}" if job.is_whole else ""
        told.append(f"--fail-if {in_options(str(job.broken))}{there}")
    elif job.kinds.refusal:
        told.append(f"gave up on a key or a model that was served before: {in_options(job.kinds.refusal)}")
    elif job.is_command and job.output_error is None and output.is_file:
        told.append("nothing was written: every row was refused for a reason of the command's")
    return told


def _failures(kinds: Kinds) -> list[str]:
    """Return a line for each of the most frequent errors, with an example."""
    lines = []
    most = kinds.errors.most_common(_MOST_FREQUENT)
    for kind, count in most:
        where, message = kinds.examples[kind]
        shown = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
        name = "unusable" if kind.type in UNUSABLE else kind.type
        lines.append(f"  {count:,} {name}, such as {where}: {' '.join(shown.split())}")
    others = kinds.failed - sum(count for _, count in most)
    return [*lines, f"  {others:,} of other kinds"] if others else lines


def _of_thinking(job: Job, options: MapOptions) -> list[str]:
    """Return what keeps the model's thinking within bounds, where it was not."""
    over = 0 if job.statistics is None else job.statistics.over_thinking_budget
    if over:
        advice = next((each.why for each in job.story if each.what == "ignores thinking_tokens"), "")
        return [f"over --thinking-tokens: {over:,} answers, since the server ignores it; {advice}"]
    if job.kinds.bad["reasoning_only"] and "thinking_tokens" not in options.params:
        return ["--thinking-tokens N bounds the thinking, and leaves room for the answer"]
    return []


def _of_truncated(job: Job, options: MapOptions, kept: Kept | None) -> list[str]:
    """Return the options that let the truncated answers go on; none where they cannot, or did not."""
    kinds = job.kinds
    bounds = [
        bound for name in ("max_tokens", "max_completion_tokens") if type(bound := options.params.get(name)) is int
    ]
    given = max(bounds, default=0)
    longest, tried = max(kinds.longest, given), options.retries["max_tokens"] or given << options.retries["truncated"]
    if not kinds.is_mendable or 0 < 2 * longest <= tried:
        return []
    way = "--retry-truncated 1" + (f" --max-tokens-at-most {2 * longest}" if longest else "")
    if kept is not None:
        way += kept.without if job.is_done else ""
        return [f"the same command with {way} lets the truncated answers go on, and sends no other answered row"]
    return [f"{way} lets such answers go on"]


def _of_journal(job: Job, kept: Kept) -> list[str]:
    """Return how the rows that are missing or failed are run again."""
    if not job.is_whole:
        has_rows = job.counts.answered or job.counts.reused or (job.pilot and job.pilot.kinds.keys() - {"failed"})
        is_worth = has_rows and os.path.lexists(kept.place)
        bound = "" if job.giving_up.end is None else job.giving_up.end.without
        return [f"{kept.place} has the answers: the same command{bound} goes on with them"] if is_worth else []
    kinds = job.kinds
    for_now = kinds.may_be_tried
    ways = [f"the same command runs {_rows(for_now)} again that may succeed now"] if for_now else []
    if for_good := kinds.failed - for_now - kinds.not_sent:
        without = "" if for_now else kept.without
        ways.append(f"--retry-failed{without} runs {_rows(for_good)} again that failed for good")
    if kinds.not_sent:
        ways.append(f"rows that were not sent: {kinds.not_sent:,} (mend the input)")
    return [f"{kept.place} has the answers: {'; '.join(ways)}"] if ways else []


def _reached(job: Job, options: MapOptions) -> list[str]:
    """Return how the objectives were kept, over the whole job."""
    limit = options.client["limit"]
    if job.statistics is None or not isinstance(limit, AdaptiveLimit):
        return []
    told = []
    for asked_s, what, name in (
        (limit.p95_latency_s, "requests", "request_duration_seconds"),
        (limit.time_to_first_token_s, "first tokens", "time_to_first_token_seconds"),
    ):
        seen = [each for each in job.statistics.histograms[name].values() if each.count]
        if asked_s is not None and seen:
            counts = tuple(map(sum, zip(*[each.counts for each in seen], strict=True)))
            p95_s = Histogram(seen[0].bounds, counts, sum(each.sum for each in seen)).quantile(0.95)
            told.append(f"95 % of {what} within {p95_s:.2g} s (asked: {asked_s:g} s)")
    return told


def _of_servers(job: Job, options: MapOptions) -> list[str]:
    """Return what each server has cost, and why calls went to a dearer one, if any has a price."""
    if job.statistics is None or options.cost is None or not options.cost.of_servers:
        return []
    told = []
    for url in dict.fromkeys(each.base_url for each in job.statistics.endpoints):
        went = [f"{count:,} ({why})" for (where, why), count in job.statistics.overflows.items() if where == url]
        more = f"; calls instead of a cheaper server's: {', '.join(went)}" if went else ""
        told.append(f"  {url} cost {written_cost(job.statistics.costs.get((url,), 0.0))}{more}")
    return told


def _counts(job: Job, output: Output) -> str:
    counts, sent = job.counts, job.statistics
    # A pilot's rows are reused, and were sent in this time.
    new = counts.answered + counts.failed + (0 if job.pilot is None else job.pilot.sent) - job.kinds.not_sent
    rate = max(new, 0) / job.seconds if job.seconds else 0.0
    is_there = output.written or output.is_in_place or not output.is_file
    parts = [
        f"{_rows(output.written)} {f'to {output.where}' if is_there else 'written'} in {job.seconds:.1f} s",
        f"{rate:,.0f} {'new ' if counts.reused else ''}rows/s" if output.written and sent and sent.batches else "",
        f"reused: {counts.reused:,}" if counts.reused else "",
        f"requests sent: {sent.batches if sent else 0:,}",
    ]
    if sent is not None:
        has_tokens = sent.prompt_tokens or sent.completion_tokens
        parts += [
            f"sent again: {sent.retries:,}" if sent.retries else "",
            f"tokens: {sent.prompt_tokens:,} in, {sent.completion_tokens:,} out" if has_tokens else "",
            f"wasted: {sent.wasted_tokens:,}" if sent.wasted_tokens else "",
            f"regained: {sent.regained_tokens:,}" if sent.regained_tokens else "",
        ]
    parts.append("" if job.spent is None else f"cost: {written_cost(job.spent)}")
    line = ", ".join(filter(None, parts))
    if counts.invalid:
        line += f"; invalid: {counts.invalid:,}"
    if job.failures.failed:
        line += f"; failed: {job.failures.failed:,}"
    return line


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"
