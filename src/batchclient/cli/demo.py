"""``batchclient demo``: this library on real texts, beside the code people write without it.

Rules:
- Without ``--base-url`` the server is the embedded one, in a process of its own, whatever the
  environment says: a demo must not load a real server because a variable is set.
- Every figure shown was measured in this run; every claim is checked by the content of the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from batchclient._client.connections import shown
from batchclient.cli._contest import Contest, Report, Run, percentile
from batchclient.cli._corpus import docstrings
from batchclient.cli._refusal import Refusal, in_options, refusal_of
from batchclient.cli._servers import KEY_HINT, ServerOptions, server_options
from batchclient.cli._shown import show
from batchclient.cli._words import say
from batchclient.client import InnerClient
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError
from batchclient.jobs.statuses import Status

__all__ = ["demo"]

_PROFILE = "gpu"
_LENGTHS = "lognormal:10:0.8"
"""Answers of a few to ``max_tokens`` tokens: in a batch of 64 the ends differ."""
_BUCKETS = (1, 8, 16, 32, 64, 128)


class DemoFailed(Exception):
    """The demo could not run, or its own checks failed. The message is one line."""


def demo(
    *,
    base_url: Annotated[
        str | None, typer.Option(help="A real server's root with its /v1. Default: the embedded server.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The real server's name of its model. Default: BATCHCLIENT_MODEL.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Sent to the real server as a bearer token. Default: BATCHCLIENT_API_KEY."),
    ] = None,
    documents: Annotated[
        int, typer.Option(min=1, help="Texts to map: docstrings of Python's standard library.")
    ] = 2000,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate per text, at most.")] = 16,
) -> None:
    """Map real texts with batch_map and with AsyncOpenAI + gather, side by side."""
    try:
        _run(_real_server(base_url, model, api_key), documents, max_tokens)
    except Refusal as refusal:
        say(f"Error: {refusal}")
        raise typer.Exit(Status.USAGE) from None
    except DemoFailed as error:
        say(f"Error: {error}")
        raise typer.Exit(Status.FAILED) from None


def _real_server(base_url: str | None, model: str | None, api_key: str | None) -> ServerOptions | None:
    if base_url is None:
        if model is not None:
            raise Refusal("--model needs --base-url")
        return None
    server = server_options([base_url], model, api_key, {})
    if not server.arguments["model"]:
        raise Refusal("--base-url needs --model, or BATCHCLIENT_MODEL")
    try:
        # Checks the arguments; a wrong URL may be a key, and must not be shown.
        InnerClient(**server.arguments)
    except ConfigError as error:
        raise refusal_of(error, variables=server.variables) from None
    return server


def _run(given: ServerOptions | None, documents: int, max_tokens: int) -> None:
    started = time.monotonic()
    texts = docstrings(documents)
    if not texts:
        raise DemoFailed("the standard library's sources are not there to be read")
    characters = sum(map(len, texts)) // len(texts)
    show(f"{len(texts):,} docstrings of Python's standard library, {characters} characters on average")
    _warn_if_busy()
    with _server(given) as server:
        contest = Contest(
            server.urls[0],
            server.arguments["model"],
            server.arguments["api_key"],
            texts,
            max_tokens,
            lambda text: show(f"  {text}"),
        )
        report = _contend(contest, server)
    _show(report)
    _check(report, max_tokens, embedded=given is None)
    show(f"All of it took {time.monotonic() - started:.0f} s. Read on: README.md, then docs/tutorial.md")


def _warn_if_busy() -> None:
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores:
        show(f"This machine is busy (load {load:.1f} on {cores} cores): times will be off, requests and CPU less so")


@contextlib.contextmanager
def _server(given: ServerOptions | None) -> Iterator[ServerOptions]:
    """Yield the given server, or the embedded one."""
    if given is not None:
        show(f"Server: {shown(given.urls[0])}, model {given.arguments['model']}")
        yield given
        return
    from batchclient.simulator import EmbeddedServer

    server = EmbeddedServer(_PROFILE, process=True, output_lengths=_LENGTHS)
    try:
        server.start()
    except (ImportError, OSError, RuntimeError) as error:
        raise DemoFailed(f"the embedded server did not start: {error}") from None
    try:
        show(f"Server: the embedded one, a model of vLLM, in a process of its own; profile {_PROFILE}, {_LENGTHS}")
        arguments: dict[str, Any] = {
            "base_url": [server.base_url],
            "model": server.model,
            "api_key": None,
            "headers": {},
        }
        yield ServerOptions(arguments, frozenset())
    finally:
        server.stop()


def _contend(contest: Contest, server: ServerOptions) -> Report:
    try:
        return asyncio.run(contest.run())
    except BatchClientError as error:
        said = "; ".join([str(error), *getattr(error, "__notes__", ())])
        hint = KEY_HINT if isinstance(error, AuthenticationFailed) and not server.has_key else ""
        url = shown(server.urls[0])
        raise DemoFailed(f"batchclient on {url}: {type(error).__name__}: {in_options(said)}{hint}") from None


def _show(report: Report) -> None:
    rates = ", ".join(f"{number}: {rate:,.0f}" for number, rate in report.trials.items())
    show(f"AsyncOpenAI + gather, texts/s by calls in flight: {rates}; {report.best} is its best here")
    Console(highlight=False).print(_table(report))
    if report.rival.failed:
        show(_failed(report.rival))
    show(f"Batches of batch_map: {_histogram(report.mapped.batch_sizes)}")


def _table(report: Report) -> Table:
    mapped, called, rival = runs = report.mapped, report.called, report.rival
    callers = f"× {report.best}"
    table = Table(caption=f"latency of one call, with {report.best} callers at once; a map has none")
    table.add_column("")
    for name in ("batch_map", f"complete() {callers}", f"AsyncOpenAI {callers}", "batch_map against AsyncOpenAI"):
        table.add_column(name, justify="right")
    table.add_row("texts", *(f"{len(run.answers):,}" for run in runs))
    table.add_row("seconds", *(f"{run.seconds:.2f}" for run in runs))
    table.add_row("texts/s", *(f"{run.per_s:,.0f}" for run in runs), _times(mapped.per_s, rival.per_s))
    table.add_row(
        "requests", *(f"{run.requests:,}" for run in runs), f"1/{rival.requests / mapped.requests:.0f} of them"
    )
    table.add_row("client CPU", *(f"{run.cpu_s:.2f} s" for run in runs), f"1/{rival.cpu_s / mapped.cpu_s:.1f} of it")
    for name, share in (("latency p50", 0.5), ("latency p95", 0.95)):
        table.add_row(name, "", *(_latency(run, share) for run in (called, rival)))
    if rival.failed:
        table.add_row("failed", "", "", f"{rival.failed:,} of {len(rival.answers):,}")
    return table


def _times(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.1f} × as many" if theirs else ""


def _latency(run: Run, share: float) -> str:
    return f"{percentile(run.latencies_s, share) * 1e3:,.0f} ms" if run.latencies_s else "–"


def _failed(rival: Run) -> str:
    return f"AsyncOpenAI failed: {rival.failed:,} of {len(rival.answers):,} ({rival.cause})"


def _histogram(sizes: Counter[int]) -> str:
    """Return one line: how many batches had how many prompts."""
    parts = []
    low = 1
    for high in _BUCKETS:
        count = sum(number for size, number in sizes.items() if low <= size <= high)
        if count:
            parts.append(f"{count:,} of {low}" + (f"–{high}" if high > low else ""))
        low = high + 1
    median = percentile(list(sizes.elements()), 0.5)
    return f"{', '.join(parts)} prompts; median {median:.0f}"


def _check(report: Report, max_tokens: int, *, embedded: bool) -> None:
    """Check whether each text got its own answer, as far as the server allows.

    Raises:
        DemoFailed: some texts got another one.
    """
    if report.rival.failed:
        raise DemoFailed(_failed(report.rival))
    agreement = f"{report.agreeing} of {report.compared} greedy answers are the same from both clients"
    # On a real server the other prompts of a step change the last bits, and so a close choice.
    if report.agreeing * 2 < report.compared:
        raise DemoFailed(f"only {agreement}")
    if not embedded:
        show(f"Checked: {agreement}")
        return
    from batchclient.simulator import expected_text
    from batchclient.simulator.text import OutputLengths

    lengths = OutputLengths.parse(_LENGTHS)
    for run in (report.mapped, report.called, report.rival):
        for prompt, answer in zip(run.prompts, run.answers, strict=True):
            if answer != expected_text(prompt, max_tokens=max_tokens, temperature=0, lengths=lengths):
                raise DemoFailed("a text got an answer that is not its own")
    show(f"Checked: every text got its own answer, by content; {agreement}")
