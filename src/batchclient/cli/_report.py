"""The end of ``batchclient map``: a summary on stderr, and the exit status."""

from __future__ import annotations

import os

from batchclient import Histogram
from batchclient.cli._cost import written_cost
from batchclient.cli._failures import UNUSABLE
from batchclient.cli._giving_up import OUT_OF_USE
from batchclient.cli._job import Job
from batchclient.cli._kept import Kept
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import in_options
from batchclient.cli._words import say
from batchclient.errors import ConnectFailed, DeadlineExceeded
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.statuses import Status, of_signal
from batchclient.options import AdaptiveLimit

__all__ = ["report", "status_of"]

_WITHOUT_SERVER = frozenset({ConnectFailed.__name__, DeadlineExceeded.__name__})
"""How every row fails where no server is there."""


def report(job: Job, options: MapOptions, output: Output, kept: Kept | None = None) -> None:
    """Report on stderr how the job ended. ``--quiet`` leaves the complaints and the rows' failures."""
    for complaint in _complaints(job, output):
        say(complaint, event="notice" if job.giving_up.is_declined else "error")
    failures = [in_options(line) for line in job.failures.lines()]
    if job.reader_is_gone:
        return
    facts = {
        "rows": output.written,
        "failed": job.failures.total,
        **job.bad.counts,
        "reused": job.counts.reused,
        "seconds": round(job.seconds, 3),
        "status": int(status_of(job)),
    }
    if options.quiet:
        if failures:
            say(f"failed: {job.failures.total:,}", *failures, event="summary", **facts)
        return
    starts = ["Interrupted" if job.signal is not None and not job.is_whole else "", job.bad.many()]
    start = "".join(f"{each}: " for each in starts if each)
    end = f"; in the end {' and '.join(lost)}" if (lost := _out_of_use(job)) else ""
    more = [*job.bad.lines(), *([] if kept is None else _of_journal(job, kept))]
    more += job.bad.way(is_kept=kept is not None)
    more += _reached(job, options)
    say(f"{start}{_counts(job, output)}{end}", *failures, *more, event="summary", **facts)


def _complaints(job: Job, output: Output) -> list[str]:
    told = [job.fault] if job.fault else []
    if job.output_error is not None and not job.reader_is_gone:
        told.append(f"{output.name}: the output cannot be written: {reason_of(job.output_error)}")
    if job.journal_error is not None:
        told.append(str(job.journal_error))
    if job.giving_up.reason:
        left = "" if job.expected is None else f"; rows left out: {max(0, job.expected - job.taken):,}"
        told.append(f"{job.giving_up.reason}{left}")
    elif job.giving_up.broken is not None:
        told.append(f"--fail-if {job.giving_up.broken}")
    elif job.refusal:
        told.append(f"gave up on a key or a model that was served before: {in_options(job.refusal)}")
    elif job.is_command and output.is_file:
        told.append("nothing was written: every row was refused for a reason of the command's")
    return told


def _of_journal(job: Job, kept: Kept) -> list[str]:
    """Return how the rows that are missing or failed are run again."""
    if not job.is_whole:
        has_rows = job.counts.answered or job.counts.reused or (job.pilot and job.pilot.kinds.keys() - {"failed"})
        is_worth = has_rows and os.path.lexists(kept.where)
        bound = "" if job.giving_up.broken is None else " without the bound"
        return [f"{kept.where} has the answers: the same command{bound} goes on with them"] if is_worth else []
    for_now = job.may_be_tried
    ways = [f"the same command runs {for_now:,} rows again that may succeed now"] if for_now else []
    if for_good := job.failures.total - for_now - job.not_sent:
        ways.append(f"--retry-failed runs {for_good:,} rows again that failed for good")
    if job.not_sent:
        ways.append(f"rows that were not sent: {job.not_sent:,}; mend the input")
    return [f"{kept.where} has the answers: {', '.join(ways)}"] if ways else []


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


def _out_of_use(job: Job) -> list[str]:
    """Return the servers that were out of use at the end, with the reason."""
    # A server that was sent nothing may be there all the same.
    endpoints = () if job.statistics is None or not job.statistics.batches else job.statistics.endpoints
    lost = [each for each in endpoints if each.state in OUT_OF_USE]
    return [f"{each.base_url} was {each.state} ({each.reason})" for each in lost]


def _counts(job: Job, output: Output) -> str:
    counts, sent = job.counts, job.statistics
    # A pilot's rows are reused, and were sent in this time.
    new = counts.answered + counts.failed + (0 if job.pilot is None else job.pilot.sent)
    rate = new / job.seconds if job.seconds else 0.0
    rows = f"{output.written:,} {'row' if output.written == 1 else 'rows'}"
    parts = [
        f"{rows} to {output.where} in {job.seconds:.1f} s",
        f"{rate:,.0f} {'new ' if counts.reused else ''}rows/s",
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
    if job.failures.total:
        line += f"; failed: {job.failures.total:,}"
    return line


def status_of(job: Job) -> int:
    """Return the exit status of a job that has ended."""
    if job.signal is not None and not job.is_whole:
        return of_signal(job.signal)
    if job.journal_error is not None or (job.output_error is not None and not job.reader_is_gone):
        return Status.DISK_FULL
    # Rows that make no request say nothing about the servers.
    kinds = job.failures.by_type.keys() - UNUSABLE
    is_cut_off = job.statistics is not None and len(_out_of_use(job)) == len(job.statistics.endpoints)
    without_server = bool(kinds) and kinds <= _WITHOUT_SERVER and is_cut_off and not job.counts.answered
    if job.refusal or job.giving_up.is_refusal:
        return Status.USAGE
    if job.giving_up.no_server or without_server:
        return Status.NO_SERVER
    if job.giving_up.is_too_dear or job.giving_up.broken is not None or job.giving_up.is_declined:
        return Status.STOPPED
    is_partial = job.failures.total or job.giving_up.reason or job.fault or job.reader_is_gone
    return Status.FAILED if is_partial else Status.OK
