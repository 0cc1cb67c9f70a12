"""``batchclient job``: a job's folder, looked at, published, exported and removed.

Rules:
- ``status``, ``failures`` and ``export`` only read, also while the job runs.
- ``publish`` takes the locks of the job, and ``rm`` looks at them: a running one is refused.
- Nothing here sends a request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from batchclient.cli._map_options import KeptOptions, MapOptions
from batchclient.cli._refusal import Refusal, named, refusal_of
from batchclient.cli._run import run_map
from batchclient.cli._servers import ServerOptions
from batchclient.cli._words import printable, say
from batchclient.errors import ConfigError, JournalFailed
from batchclient.jobs.folder import JobFolder, JobState
from batchclient.jobs.output import reason_of
from batchclient.jobs.owner import is_locked, lock_of
from batchclient.jobs.statuses import Status

__all__ = ["make_job_app"]

_Job = Annotated[str, typer.Argument(metavar="OUT.job", help="The folder of a job.")]
_Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
_NOWHERE = "http://nowhere.invalid/v1"
"""Never connected to: publishing sends nothing."""


def make_job_app() -> typer.Typer:
    """Make the group of commands."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        help="Look at the jobs of `batchclient map`, write their outputs anew, remove them.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (status, publish, failures, export, rm):
        app.command(command.__name__)(command)
    return app


def status(job: _Job, *, as_json: _Json = False) -> None:
    """Show how far a job is: rows, failures, output, journal."""
    with _told():
        folder = _folder(job)
        told = _status(folder)
    if as_json:
        typer.echo(printable(json.dumps(told, ensure_ascii=False)))
        return
    for name, value in told.items():
        if value is not None:
            typer.echo(f"{name.replace('_', ' ')}: {value:,}" if type(value) is int else f"{name}: {printable(value)}")


def failures(job: _Job, *, as_json: _Json = False) -> None:
    """Write the rows that failed: a line each, with the row's id and the error."""
    with _told():
        for identity, error in _folder(job).failures():
            if as_json:
                typer.echo(printable(json.dumps({"id": identity, **error}, ensure_ascii=False)))
            else:
                message = f": {error['message']}" if error.get("message") else ""
                typer.echo("\t".join(map(printable, (identity or "-", f"{error.get('error')}{message}"))))


def export(job: _Job, *, output: Annotated[str, typer.Option("--output", "-o", metavar="FILE")] = "-") -> None:
    """Write every row of the journal that can be read as a line of JSON, also of a damaged one.

    The fields are key, n, id, state (1 answered, 2 failed for good, 3 may be tried again),
    attempts, and error or answer.
    """
    with _told():
        damaged = 0
        rows = _folder(job, must_be_whole=False).export()
        with _writing(output) as write:
            for row in rows:
                if row is None:
                    damaged += 1
                else:
                    write(json.dumps(row, ensure_ascii=True) + "\n")
    if damaged:
        say(f"rows that cannot be read: {damaged:,}")
        raise typer.Exit(Status.FAILED)


def publish(job: _Job) -> None:
    """Write the output anew from the journal and the input. Nothing is sent."""
    with _told():
        folder = _folder(job)
        state = folder.state()
        model = "" if state is None else state.model
        try:
            server = ServerOptions(
                {"base_url": [_NOWHERE], "model": model, "api_key": None, "headers": {}}, frozenset()
            )
            options = MapOptions.from_file(
                folder.settings(), folder.path, server, KeptOptions(resume=True, journal=str(folder.path), publish=True)
            )
        except (KeyError, TypeError, ValueError):
            raise Refusal(f"{folder.path}/job.json is damaged, or another version's") from None
        if options.source == "-":
            options = options.reading(str(folder.input))
        options.client.update(detect=False, server_metrics=False)
        result = run_map(options)
    raise typer.Exit(result)


def rm(job: _Job, *, force: Annotated[bool, typer.Option("--force", help="Also an unfinished job.")] = False) -> None:
    """Remove a job's folder; the output stays. An unfinished job is removed with --force alone."""
    with _told():
        folder = _folder(job, must_be_whole=False)
        if not folder.is_finished and not force:
            try:
                state = folder.state()
            except ConfigError:
                state = None
            rows = 0 if state is None else state.answered
            raise Refusal(f"{folder.path} has {rows:,} answers of an unfinished job; --force gives them up")
        output = folder.settings().get("output") if (folder.path / "job.json").exists() else None
        if _is_running(folder, output):
            raise Refusal(f"{folder.path}: the job is running")
        folder.remove()


def _folder(path: str, *, must_be_whole: bool = True) -> JobFolder:
    folder = JobFolder(Path(path))
    if not folder.journal.exists() and not (folder.path / "job.json").exists():
        beside = f"{path}.job"
        such = f"{beside} is one" if JobFolder(Path(beside)).exists else "it is beside its output, such as OUT.job"
        raise Refusal(f"{named(path, 'OUT.job')}: there is no job's folder; {such}")
    if must_be_whole and not folder.exists:
        raise Refusal(f"{path}: the job has no row yet")
    return folder


def _status(folder: JobFolder) -> dict[str, Any]:
    state = folder.state()
    settings = folder.settings() if (folder.path / "job.json").exists() else {}
    output = settings.get("output")
    return {
        "job": str(folder.path),
        "state": "finished" if folder.is_finished else "running" if _is_running(folder, output) else "unfinished",
        "begun": None if state is None else state.begun,
        "model": None if state is None else state.model,
        "input": settings.get("input"),
        "output": output,
        **_counts(state),
        "output_bytes": None if state is None or state.mark is None else state.mark.size,
        "journal_bytes": folder.size(),
    }


def _counts(state: JobState | None) -> dict[str, int]:
    if state is None:
        return {"answered": 0, "failed": 0, "may_be_tried": 0}
    return {"answered": state.answered, "failed": state.failed, "may_be_tried": state.may_be_tried}


def _is_running(folder: JobFolder, output: str | None) -> bool:
    outputs = [] if output in (None, "-") else [lock_of(Path(str(output)))]
    return any(is_locked(path) for path in (*outputs, folder.lock))


@contextmanager
def _writing(output: str) -> Iterator[Any]:
    if output == "-":
        yield lambda text: typer.echo(text, nl=False)
        return
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refusal(f"--output: {output}: {reason_of(error)}") from None
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        yield opened.write


@contextmanager
def _told() -> Iterator[None]:
    """Say a complaint in one line."""
    try:
        yield
    except ConfigError as error:
        _complain(refusal_of(error))
    except Refusal as refusal:
        _complain(refusal)
    except JournalFailed as error:
        _complain(error, Status.DISK_FULL)
    except BrokenPipeError:
        raise typer.Exit(Status.FAILED) from None
    except OSError as error:
        _complain(Refusal(reason_of(error)), Status.DISK_FULL)


def _complain(complaint: Exception, result: Status = Status.USAGE) -> NoReturn:
    say(f"Error: {complaint}")
    raise typer.Exit(result)
