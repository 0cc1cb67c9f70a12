"""``batchclient bench``: the limit, the batch size and the client for this server and this load.

Rules:
- The answer goes to stdout, and each measurement's line to stderr when it is done.
- A wrong command is refused before a call is sent, and before a file is touched.
- Ctrl-C ends the measurement: what is finished is written in a report that is marked incomplete.
- No output has a prompt, an answer or a key.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from batchclient import ConfigError
from batchclient.bench import Slo, Times, Workload
from batchclient.bench.compare import Bound, differences, workload_differences
from batchclient.bench.html import write_page
from batchclient.bench.report import Report, read_report
from batchclient.bench.sweep import check_objectives
from batchclient.cli import _bench_options as read
from batchclient.cli._bench_run import Outputs, Question, are_one_file, measure, writing
from batchclient.cli._corpus import docstrings
from batchclient.cli._options import ApiKey, BaseUrl, Headers, Model
from batchclient.cli._refusal import Refusal, named
from batchclient.cli._words import put
from batchclient.cli.app import make_group
from batchclient.jobs.output import reason_of
from batchclient.jobs.statuses import Status

__all__ = ["make_bench_app"]

_CORPUS = 5000
_SEEDS = 2**31


def _duration(help_text: str, *names: str) -> Any:
    return typer.Option(*names, metavar="TIME", parser=read.read_duration, help=help_text)


class _Group(TyperGroup):
    """The group of commands, which knows a server that is given without its option."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name."""
        # The URL may have a key in it, and is not repeated.
        if args and "://" in args[0]:
            raise Refusal("a server is given with --base-url URL")
        return super().resolve_command(ctx, args)


def make_bench_app() -> typer.Typer:
    """Make the group of commands."""
    app = make_group(
        "Measure a server: which limit, which batch size, which client, for a load and an objective.",
        cls=_Group,
        no_args_is_help=False,
    )
    app.callback(invoke_without_command=True)(bench)
    app.command("report")(report)
    app.command("compare")(compare)
    return app


def bench(
    context: typer.Context,
    *,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key: ApiKey = None,
    header: Headers = None,
    call: Annotated[Literal["complete", "chat", "embed"], typer.Option(help="The calls.")] = "complete",
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Prompts from the rows of a file, as map reads it.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEMPLATE", help="With --prompts: the template (default {text}).")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of a drawn prompt, on the mean (default 256).")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of an answer (default 128).")
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="SIGMA", help="The spread of drawn prompts' lengths, lognormal (default 0)."),
    ] = None,
    corpus: Annotated[bool, typer.Option("--corpus", help="Prompts: docstrings of Python's library.")] = False,
    prefix_reuse: Annotated[
        float | None,
        typer.Option(
            metavar="none|SHARE", parser=read.read_share, help="The share of each prompt that is the same for all."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The seed of prompts, arrivals and orders (default: drawn).")
    ] = None,
    concurrency: Annotated[
        Any,
        typer.Option(metavar="N,N,…", parser=read.read_numbers, help="Calls in flight (default 8,32,128)."),
    ] = None,
    sizes: Annotated[
        Any,
        typer.Option(metavar="N,N,…", parser=read.read_numbers, help="Prompts per request, of lists (default 32)."),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="adaptive, fixed, lists, singles, async-openai (default adaptive,lists,async-openai).",
        ),
    ] = None,
    rate: Annotated[
        Any,
        typer.Option(metavar="R,R,…", parser=read.read_rates, help="Arrivals per second, of open loads."),
    ] = None,
    slo: Annotated[
        list[Slo] | None,
        typer.Option(
            metavar="OBJECTIVE",
            parser=read.read_slo,
            help="'p95<400ms'; also 'ttft p99<1s', 'tpot p95<50ms', with --find or --strategies without "
            "async-openai; repeatable.",
        ),
    ] = None,
    find: Annotated[
        Literal["limit", "rate"] | None, typer.Option(help="Search for the best one instead of a sweep.")
    ] = None,
    window: Annotated[
        float | None, _duration("The length of a measurement: 30, 90s, 15m (default 30 s).", "--for")
    ] = None,
    warm_up: Annotated[float | None, _duration("Before each one, not counted (default 5 s).")] = None,
    grace: Annotated[float | None, _duration("After each one, for answers to come (default 60 s).")] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Repetitions of each measurement (default 3).")
    ] = None,
    budget: Annotated[float | None, _duration("No measurement is begun that would end later, such as 15m.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look, in a minute: adaptive and async-openai, 5 s each.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Measure a hosted service, too.")] = False,
    report_file: Annotated[
        str | None, typer.Option("--report", metavar="FILE.html", help="Write the report for people.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE.json", help="Write the report for programs.")
    ] = None,
) -> Status | int:
    """Measure a server: which limit, which batch size, which client, for a load and an objective."""
    if context.invoked_subcommand is not None:
        return Status.OK
    target, has_key = read.target_from(base_url, model, api_key, header)
    of_prompts = {"--prompts": prompts is not None, "--prompt-tokens": prompt_tokens is not None, "--corpus": corpus}
    given = [option for option, is_given in of_prompts.items() if is_given]
    if len(given) > 1:
        raise Refusal(f"{given[1]}: not with {given[0]}; one of them says what the prompts are")
    if prompt is not None and prompts is None:
        raise Refusal("--prompt: the template of --prompts, which is not given")
    if spread is not None and given and given[0] != "--prompt-tokens":
        raise Refusal(f"--spread: of drawn prompts; those of {given[0]} have lengths of their own")
    if output_tokens is not None and call == "embed":
        raise Refusal("--output-tokens: --call embed generates nothing")
    slos = tuple(slo or ())
    if quick and budget is None:
        budget = 60.0
    defaults = (2.0, 5.0, 10.0) if quick else (5.0, 30.0, 60.0)
    given_s = zip((warm_up, window, grace), defaults, strict=True)
    times = Times(*(default if seconds is None else seconds for seconds, default in given_s))
    if find is None:
        if concurrency is None and rate is None:
            concurrency = [8, 32, 128]
        if strategies is None:
            strategies = "adaptive,async-openai" if quick else "adaptive,lists,async-openai"
        settings, left_out = read.settings_from(
            slos, call, concurrency=concurrency or (), sizes=sizes, strategies=strategies, rates=rate or ()
        )
        question = Question(settings, slos, times, None, repeat or (1 if quick else 3), budget, left_out)
    else:
        of_sweeps = {"concurrency": concurrency, "sizes": sizes, "strategies": strategies, "rate": rate}
        for option, value in {**of_sweeps, "repeat": repeat}.items():
            if value is not None:
                raise Refusal(f"--{option}: not with --find, which chooses the measurements itself")
        if find == "rate" and not slos:
            raise Refusal("--find rate needs an objective, such as --slo 'p95<400ms'")
        check_objectives(slos, ["fixed" if find == "limit" else "adaptive"], call)
        question = Question((), slos, times, find, budget_s=budget)
    texts = docstrings(_CORPUS) if corpus else None
    if prompts is not None:
        texts = read.texts_of(prompts, prompt or "{text}")
    workload = Workload(
        prompt_tokens=prompt_tokens or 256,
        output_tokens=output_tokens or 128,
        spread=spread or 0.0,
        prefix_reuse=None if prefix_reuse is None or math.isnan(prefix_reuse) else prefix_reuse,
        call=call,
        prompts=texts,
        # A server's prefix cache has the prompts of the run before.
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
    )
    if has_key and not yes and read.is_hosted(target.base_url):
        _refuse_hosted(question, workload)
    outputs = Outputs(report_file, json_file, prompts)
    outputs.check()
    return measure(target, workload, question, outputs, has_key=has_key)


def report(
    file: Annotated[str, typer.Argument(metavar="R.json", help="A report that bench wrote with --json.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="R.html", help="Where the page goes.")],
) -> None:
    """Write a report for people from one for programs."""
    if output == "-":
        raise Refusal("--output -: the name of a file; a page is no text for a terminal")
    if are_one_file(file, output):
        raise Refusal(f"--output {output}: the report itself, which the page would replace; give another name")
    found = _read(file)
    with writing(output):
        write_page(found, Path(output))


def compare(
    first: Annotated[str, typer.Argument(metavar="A.json", help="A report.")],
    second: Annotated[str, typer.Argument(metavar="B.json", help="A later report of the same workload.")],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="BOUND", help="End with status 1 if a ratio of B to A is beyond, such as 'goodput<0.95'."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare different workloads, too.")] = False,
) -> Status:
    """Compare two reports: the ratio of B to A of every figure, with its interval."""
    try:
        bounds = [Bound(text) for text in fail_if or []]
    except ConfigError as error:
        raise Refusal(f"--fail-if: {error.message}") from None
    before, after = _read(first), _read(second)
    unlike = workload_differences(before, after)
    if unlike and not force:
        raise Refusal(f"the workloads differ; --force compares all the same: {'; '.join(unlike)}")
    here, there = ({each.setting for each in report.measurements} for report in (before, after))
    if not here & there:
        raise Refusal("the reports have no setting in common")
    lines, is_broken = _compared(before, after, bounds)
    # A server that went away passes no pipeline, forced or not.
    is_broken = is_broken or bool(bounds and not after.about.complete and here - there)
    put(*(f"different: {line}" for line in unlike), *lines)
    return Status.FAILED if is_broken else Status.OK


def _compared(before: Report, after: Report, bounds: Sequence[Bound]) -> tuple[list[str], bool]:
    """Return the ratios in words, and whether one is beyond a bound."""
    lines, is_broken = [], False
    for each in differences(before, after):
        broken = [bound.text for bound in bounds if bound.is_broken(each)]
        is_broken = is_broken or bool(broken)
        beyond = f"  beyond {', '.join(broken)}" if broken else ""
        lines.append(f"{each.setting}: {each.comparison.said_of(each.figure)}{beyond}")
    for name, report in (("first", before), ("second", after)):
        if not report.about.complete:
            lines.append(f"the {name} report is incomplete")
    return lines, is_broken


def _read(path: str) -> Report:
    try:
        return read_report(Path(path))
    except OSError as error:
        raise Refusal(f"{named(path, 'the report')}: {reason_of(error)}") from None


def _refuse_hosted(question: Question, workload: Workload) -> NoReturn:
    times, count = question.times, len(question.settings) * question.repeat
    seconds = count * (times.warm_up_s + times.window_s)
    if question.budget_s is not None:
        seconds = min(seconds or math.inf, question.budget_s)
    long = f"for {seconds:,.0f} s" if seconds else "until the search ends"
    prompt = "the tokens of its prompt" if workload.prompts else f"some {workload.prompt_tokens:,} tokens of prompt"
    answer = "" if workload.call == "embed" else f" and {workload.output_tokens:,} of answer"
    raise Refusal(
        f"this sends calls without a pause {long} to a host beyond this network, which may be paid by the"
        f" token; each call has {prompt}{answer}; --yes does it"
    )
