"""The end of ``batchclient map``: a summary on stderr, and the exit status."""

from __future__ import annotations

import os

from batchclient.cli._cost import written_cost
from batchclient.cli._job import Job
from batchclient.cli._kept import Kept
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import in_options
from batchclient.cli._refused import UNUSABLE
from batchclient.cli._servers import KEY_HINT
from batchclient.cli._words import say
from batchclient.errors import AuthenticationFailed, ConnectFailed, DeadlineExceeded
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["report", "status_of"]

_WITHOUT_SERVER = {ConnectFailed.__name__, DeadlineExceeded.__name__}
"""How every row fails where no server is there."""


def report(job: Job, options: MapOptions, output: Output, left: int, kept: Kept | None = None) -> None:
    """Report on stderr how the job ended."""
    summary = [_counts(job, output)]
    if out_of_use := _out_of_use(job):
        summary[0] += f"; in the end {' and '.join(out_of_use)}"
    for line in job.failures.lines():
        without_key = AuthenticationFailed.__name__ in line and not options.server.has_key
        summary.append(f"{in_options(line)}{KEY_HINT if without_key else ''}")
    if job.fault:
        say(f"Error: {job.fault}")
    if job.output_error is not None and not job.reader_is_gone:
        say(f"Error: {output.name}: the output cannot be written: {reason_of(job.output_error)}")
    if job.journal_error is not None:
        say(f"Error: {in_options(str(job.journal_error))}")
    if job.no_server:
        say(f"Error: gave up: {job.no_server}; rows left out: {left:,}")
    elif job.is_too_dear:
        say(f"Error: stopped: --max-cost is reached; rows left out: {left:,}")
    elif left:
        refused = f"no row succeeded, and {job.refused.most} failed alike with {job.refused.kind}"
        say(f"Error: stopped: {refused}; rows left out: {left:,} (--keep-going tries them all)")
    if job.refused.is_command and output.is_file and not job.refused.kind:
        say("Error: nothing was written: every row was refused for a reason of the command's")
    if job.signal is not None:
        summary[0] = f"Interrupted: {summary[0]}"
    if (
        kept is not None
        and os.path.lexists(kept.where)
        and not job.is_whole
        and (job.counts.answered or job.counts.reused)
    ):
        summary.append(f"{kept.where} has the answers: the same command goes on with them")
    elif kept is not None and job.is_whole and job.failures.total:
        summary.append(f"{kept.where} has the answers: {_again(job)}")
    if not options.quiet and not job.reader_is_gone:
        facts = {"rows": output.written, "failed": job.failures.total, "reused": job.counts.reused}
        say(*summary, event="summary", **facts, seconds=round(job.seconds, 3), status=int(status_of(job)))


def _again(job: Job) -> str:
    """Return how failed rows run again."""
    for_now = job.may_be_tried
    ways = [f"the same command runs {for_now:,} rows again that may succeed now"] if for_now else []
    if for_now < job.failures.total:
        ways.append("--retry-failed runs the rows again that were sent and failed for good")
    return ", ".join(ways)


def _out_of_use(job: Job) -> list[str]:
    """Return the servers that were out of use at the end, with the reason."""
    endpoints = () if job.statistics is None else job.statistics.endpoints
    lost = [each for each in endpoints if each.state in ("ejected", "probing")]
    return [f"{each.base_url} was {each.state} ({each.reason})" for each in lost]


def _counts(job: Job, output: Output) -> str:
    counts = job.counts
    new = counts.answered + counts.failed
    rate = new / job.seconds if job.seconds else 0.0
    rows = f"{output.written:,} {'row' if output.written == 1 else 'rows'}"
    parts = [f"{rows} to {output.where} in {job.seconds:.1f} s"]
    if counts.reused:
        parts += [f"{rate:,.0f} new rows/s", f"reused: {counts.reused:,}"]
    else:
        parts.append(f"{rate:,.0f} rows/s")
    sent = job.statistics
    parts.append(f"requests sent: {sent.batches if sent else 0:,}")
    if sent and sent.retries:
        parts.append(f"sent again: {sent.retries:,}")
    if sent and (sent.prompt_tokens or sent.completion_tokens):
        parts.append(f"tokens: {sent.prompt_tokens:,} in, {sent.completion_tokens:,} out")
    if sent and sent.wasted_tokens:
        parts.append(f"wasted: {sent.wasted_tokens:,}")
    if job.spent is not None:
        parts.append(f"cost: {written_cost(job.spent)}")
    line = ", ".join(parts)
    if job.invalid:
        line += f"; invalid: {job.invalid:,}"
    if job.failures.total:
        line += f"; failed: {job.failures.total:,}"
    return line


def status_of(job: Job) -> int:
    """Return the exit status of a job that has ended."""
    if job.signal is not None:
        return of_signal(job.signal)
    if job.journal_error is not None or (job.output_error is not None and not job.reader_is_gone):
        return Status.DISK_FULL
    # Rows that make no request say nothing about the servers.
    kinds = job.failures.by_type.keys() - UNUSABLE
    is_cut_off = job.statistics is not None and len(_out_of_use(job)) == len(job.statistics.endpoints)
    without_server = bool(kinds) and kinds <= _WITHOUT_SERVER and is_cut_off and not job.counts.answered
    if job.no_server or without_server or job.refused.kind == ConnectFailed.__name__:
        return Status.NO_SERVER
    if job.is_too_dear:
        return Status.STOPPED
    is_partial = job.failures.total or job.leaves_rows or job.fault or job.reader_is_gone
    return Status.FAILED if is_partial else Status.OK
