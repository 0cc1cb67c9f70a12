"""The end of ``batchclient map``: a summary on stderr, and the exit status."""

from __future__ import annotations

from batchclient.cli._durable import Durable
from batchclient.cli._job import Job
from batchclient.cli._map_options import MapOptions
from batchclient.cli._progress import say
from batchclient.cli._refusal import in_options
from batchclient.cli._servers import KEY_HINT
from batchclient.errors import AuthenticationFailed, ConnectFailed, DeadlineExceeded
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["report", "status_of"]

_WITHOUT_SERVER = {ConnectFailed.__name__, DeadlineExceeded.__name__}
"""How every row fails where no server is there."""


def report(job: Job, options: MapOptions, output: Output, left: int, durable: Durable | None = None) -> None:
    """Report on stderr how the job ended."""
    rate = job.written / job.seconds if job.seconds else 0.0
    rows = f"{job.written:,} {'row' if job.written == 1 else 'rows'}"
    summary = f"{rows} to {output.where} in {job.seconds:.1f} s, {rate:,.0f} rows/s, requests sent: {job.requests:,}"
    if any(job.tokens):
        summary += f", tokens: {job.tokens[0]:,} in, {job.tokens[1]:,} out"
    if job.reused:
        summary += f"; reused: {job.reused:,}"
    if job.failed_in_output:
        summary += f"; failed: {job.failed_in_output:,}"
    if job.missing:
        summary += f"; not in the journal, and left out: {job.missing:,}"
    if job.out_of_use:
        summary += f"; in the end {' and '.join(job.out_of_use)}"
    for line in job.failures.lines():
        without_key = AuthenticationFailed.__name__ in line and not options.server.has_key
        summary += f"\n{in_options(line)}{KEY_HINT if without_key else ''}"
    if job.fault:
        say(f"Error: {job.fault}")
    if job.output_error is not None and not job.reader_is_gone:
        say(f"Error: {output.name}: the output cannot be written: {reason_of(job.output_error)}")
    if job.journal_error is not None:
        say(f"Error: {in_options(str(job.journal_error))}")
    if job.no_server:
        say(f"Error: gave up: {job.no_server}; rows left out: {left:,}")
    elif left:
        say(
            f"Error: stopped: no row succeeded, and {job.refusals} failed alike with {job.stopped_by}; rows left out: "
            f"{left:,} (--keep-going tries them all)"
        )
    if job.signal is not None:
        summary = f"Interrupted: {summary}"
    if durable is not None and not job.is_refused:
        summary += f"\n{_of_journal(job, durable)}"
    if not options.quiet and not job.reader_is_gone:
        say(summary)


def _of_journal(job: Job, durable: Durable) -> str:
    """Return where the answers are, and how they are removed or used."""
    folder = durable.folder
    size = f"{folder.path} has {_bytes(folder.size())}"
    if job.is_whole:
        return f"{size}; `batchclient job rm {folder.path}` removes it"
    return f"{size}: the same command with --resume goes on with its answers"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} KB"


def status_of(job: Job) -> int:
    """Return the exit status of a job that has ended."""
    if job.signal is not None:
        return of_signal(job.signal)
    if job.journal_error is not None or (job.output_error is not None and not job.reader_is_gone):
        return Status.DISK_FULL
    kinds = job.failures.by_type.keys()
    if job.no_server or (kinds and kinds <= _WITHOUT_SERVER and job.is_cut_off and not job.succeeded):
        return Status.NO_SERVER
    return Status.FAILED if job.failed_in_output or job.fault or job.reader_is_gone else Status.OK
