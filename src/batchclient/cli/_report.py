"""The end of ``batchclient map``: a summary on stderr, and the exit status."""

from __future__ import annotations

from batchclient.cli._cost import written_cost
from batchclient.cli._durable import Durable
from batchclient.cli._job import Job
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


def report(job: Job, options: MapOptions, output: Output, left: int, durable: Durable | None = None) -> None:
    """Report on stderr how the job ended."""
    summary = [_counts(job, output)]
    if job.out_of_use:
        summary[0] += f"; in the end {' and '.join(job.out_of_use)}"
    for line in job.tally.failures.lines():
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
    if job.refused.is_command and not job.refused.kind:
        say("Error: nothing was written: every row was refused for a reason of the command's")
    if job.signal is not None:
        summary[0] = f"Interrupted: {summary[0]}"
    if durable is not None and durable.folder.exists:
        summary.append(_of_journal(job, options, durable))
    if not options.quiet and not job.reader_is_gone:
        facts = {"rows": job.written, "failed": job.tally.failed_in_output, "reused": job.tally.reused}
        say(*summary, event="summary", **facts, seconds=round(job.seconds, 3), status=int(status_of(job)))


def _of_journal(job: Job, options: MapOptions, durable: Durable) -> str:
    """Return where the answers are, and how they are removed or used."""
    folder = durable.folder
    size = f"{folder.path} has {_bytes(folder.size())}"
    if folder.is_finished and job.tally.failed_in_output:
        return (
            f"{size}; `batchclient job failures {folder.path}` names the failed rows, "
            "--resume runs those again that may succeed now, --resume --retry-failed all each of them, "
            f"`batchclient job rm {folder.path}` removes it"
        )
    if folder.is_finished:
        return f"{size}; `batchclient job rm {folder.path}` removes it"
    instead = " instead of --overwrite" if options.overwrite else ""
    command = "the map" if options.kept.publish else "the same command"
    return f"{size}: {command} with --resume{instead} goes on with its answers"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} KB"


def _counts(job: Job, output: Output) -> str:
    new = job.tally.answered + job.tally.failed
    rate = new / job.seconds if job.seconds else 0.0
    rows = f"{job.written:,} {'row' if job.written == 1 else 'rows'}"
    parts = [f"{rows} to {output.where} in {job.seconds:.1f} s"]
    if job.tally.reused:
        parts += [f"{rate:,.0f} new rows/s", f"reused: {job.tally.reused:,}"]
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
    counts = ", ".join(parts)
    if job.invalid:
        counts += f"; invalid: {job.invalid:,}"
    if job.tally.failed_in_output:
        counts += f"; failed: {job.tally.failed_in_output:,}"
    if job.tally.missing:
        counts += f"; not in the journal, and left out: {job.tally.missing:,}"
    return counts


def status_of(job: Job) -> int:
    """Return the exit status of a job that has ended."""
    if job.signal is not None:
        return of_signal(job.signal)
    if job.journal_error is not None or (job.output_error is not None and not job.reader_is_gone):
        return Status.DISK_FULL
    # Rows that make no request say nothing about the servers.
    kinds = job.tally.failures.by_type.keys() - UNUSABLE
    without_server = bool(kinds) and kinds <= _WITHOUT_SERVER and job.is_cut_off and not job.tally.answered
    if job.no_server or without_server or job.refused.kind == ConnectFailed.__name__:
        return Status.NO_SERVER
    if job.is_too_dear:
        return Status.STOPPED
    is_partial = job.tally.failed_in_output or job.tally.missing or job.fault or job.reader_is_gone
    return Status.FAILED if is_partial else Status.OK
