"""``batchclient plan``: what a job would take on so many servers, with another limit.

Rules:
- A server is fitted to the journal of a job. The client itself runs the rows on simulated servers
  of that profile, in virtual time: nothing is sent.
- What the journal has not seen is refused, with the pilot that would show it: more sequences at a
  server, or far fewer; prompts and answers of other lengths; all from one load.
- A fit is of servers that are alike: a job of several models has no plan.
- A plan does not depend on the machine that makes it.
- An interval has what the fit leaves open, and what a formula of so few numbers leaves out.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, pstdev
from typing import Annotated, Any

import typer

from batchclient import AdaptiveLimit, BatchClient, Price
from batchclient._common.descriptors import without_sockets
from batchclient.cli._cost import written_cost
from batchclient.cli._dry_run import Reading, most_of, written
from batchclient.cli._options import of_job
from batchclient.cli._prompts import Prompts
from batchclient.cli._refusal import Refusal, named
from batchclient.cli._rows import blame
from batchclient.cli._words import put, say
from batchclient.cli.job import opened
from batchclient.jobs.output import reason_of
from batchclient.jobs.source import Source
from batchclient.journal.rows import ANSWERED
from batchclient.simulator import Fault, OutputLengths, SimulatedServer, SimulatorTransport
from batchclient.simulator.fit import LEAST_ROWS, MOST_ROWS, Call, Fit, NotSeen, fit
from batchclient.testing import VirtualLoop

__all__ = ["plan"]

_ROWS, _WAVES = 1000, 3
"""Rows that run, or what fills the servers so often; a longer job goes on as the middle did."""
_NEARLY, _FEW = 0.25, 0.05
"""Lengths so near to those seen are seen, too; and this share of the rows may be further away."""
_LEFT_OUT = 0.1
"""What the formula leaves out, and how a server differs from one hour to the next, as a relative
standard error: 18 measured times were 0.12 away from what was told, root mean square
(``benchmarks/plan_vllm.py``, vLLM 0.32 on two cores)."""
_Z = 1.645
_MOST_SERVERS, _MOST_LIMIT = 64, 2000
"""More servers take minutes to run; more sequences than a fit has rows are never seen."""
_LOAD, _LOW = 64, 16
"""Of a pilot: where nothing is known, and so high if less is asked."""
_MANY = 1.25
"""So many rows over a load let the servers have that load."""
_GENERATE = (None, "chat", "complete")
_ONE_ANSWER = "a plan is of generated texts with one answer a row"
_TOLD = ("seconds", "tokens_per_s")
_COLUMNS = "{:>7} {:>6} {:>26} {:>26} {:>26}"

Lengths = Sequence[tuple[int, int]]
"""Tokens of the prompt and of the answer of each row."""


def plan(
    journal: Annotated[str, typer.Argument(metavar="JOURNAL", help="The journal of a job or a pilot; or its output.")],
    source: Annotated[str | None, typer.Argument(metavar="IN", help="Other rows, read as the job's.")] = None,
    *,
    servers: Annotated[str, of_job("How many servers; one or several numbers.", "N,…")] = "1",
    limit: Annotated[str, of_job("Sequences in flight per server: numbers, or auto.", "N,…")] = "auto",
    gpu_price: Annotated[float | None, of_job("The price of an hour of one server.", "P")] = None,
    as_json: Annotated[bool, of_job("Write JSON.", None, "--json")] = False,
) -> None:
    """Tell what a job would take: seconds, tokens/s and cost, each with a 90 % interval.

    A server is fitted to the journal, and the client runs the job there in virtual time. What the
    journal has not seen is refused, with the pilot that would show it. Exit status: 0, or 2.
    """
    counts, limits = _numbers(servers, "--servers", _MOST_SERVERS), _numbers(limit, "--limit", _MOST_LIMIT, "auto")
    if gpu_price is not None and not 0 <= gpu_price < math.inf:
        raise Refusal(f"--gpu-price: the price of an hour of one server, not {gpu_price:g}")
    price = None if gpu_price is None else Price(per_hour=gpu_price)
    with opened(journal) as held:
        job = held.job or {}
        calls, there = _calls_of(journal, held.records(), job)
    made = None if source is None else _asked(source, job)
    rows = len(calls) if made is None else made[1]
    try:
        lengths = _lengths(calls) if made is None or not calls else _lengths_of(str(source), made[0], calls)
        seen = fit(calls)
        for each in limits:
            load = max(min(each, math.ceil(rows / count)) for count in counts)
            if load > seen.most or 0 < 2 * each < seen.least:
                raise NotSeen(f"its servers had {seen.least:.0f} to {seen.most} sequences each, and not {load}")
    except NotSeen as error:
        there = there if made is None else rows
        usual = max(1, min(max((call.in_flight for call in calls), default=_LOAD), there // 2))
        pilot = _pilot(source, there, [min(each or usual, math.ceil(there / min(counts))) for each in limits])
        raise Refusal(f"{journal}: {error}; {pilot}") from None
    plans = [_plan(seen, rows, lengths, count, each, price) for count in counts for each in limits]
    if as_json:
        put(json.dumps({"rows": rows, "plans": plans}))
        return
    say(f"{rows:,} rows, as {len(calls):,} rows were answered, with 90 % intervals; auto goes to {seen.most}")
    put(_COLUMNS.format("servers", "limit", "seconds", "tokens/s", "cost").rstrip())
    for told in plans:
        costs = "" if told["cost"] is None else _written(*map(written_cost, told["cost"]))
        seconds, rates = (_written(*(f"{each:,.{1 if each < 100 else 0}f}" for each in told[name])) for name in _TOLD)
        put(_COLUMNS.format(told["servers"], told["limit"], seconds, rates, costs).rstrip())


def _written(low: str, middle: str, high: str) -> str:
    return f"{middle} ({low} to {high})"


def _numbers(text: str, option: str, most: int, word: str | None = None) -> list[int]:
    """Read whole numbers from 1 to the most, between commas; the word is 0."""
    given = text.split(",")
    numbers = [each for each in given if each != word]
    is_right = all(each.isascii() and each.isdigit() and len(each) <= len(str(most)) for each in numbers)
    if not is_right or not all(1 <= int(each) <= most for each in numbers):
        or_word = f", or {word}" if word else ""
        raise Refusal(f"{option}: whole numbers from 1 to {most:,}, between commas{or_word}; not {text!r:.40}")
    return [0 if each == word else int(each) for each in given]


def _pilot(source: str | None, rows: int, loads: Sequence[int]) -> str:
    """Tell of the commands after which there is a plan for such loads: a low load, then a high one.

    Args:
        source: the input, if one is given.
        rows: that it has.
        loads: sequences in flight at a server.
    """
    high = max(*loads, min(_LOW, 4 * min(loads)))
    low = max(1, min(high // 4, *loads))
    there, more = min(rows, MOST_ROWS), max(2 * LEAST_ROWS, 2 * high)
    first = max(LEAST_ROWS, more // 10)
    if first + more > there:
        first, more = there // 8, there - there // 8
    if there < LEAST_ROWS or more < _MANY * high:
        enough = f"ask for --limit {int(more / _MANY)} at most"
        enough = f"give an IN of {LEAST_ROWS} rows at least" if there < LEAST_ROWS else enough
        return f"a pilot of {there:,} rows of {source or 'the job'} does not show it: {enough}"
    command = f"batchclient map {source or 'IN'} --journal PILOT -o"
    low_load = f"{command} LOW --first {first} --concurrency {low} …"
    high_load = f"{command} HIGH --first {first + more} --concurrency {high} …"
    return f"a pilot of two loads, in a new journal, shows it: {low_load}; {high_load}"


def _calls_of(journal: str, records: Iterable[Mapping[str, Any]], job: Mapping[str, Any]) -> tuple[list[Call], int]:
    """Return the rows that say when they were sent, and how many rows there are.

    Raises:
        Refusal: the job has several models, or other answers than generated ones, or several a row.
    """
    calls: list[Call] = []
    answers: Counter[int] = Counter()
    answered_by: set[str] = set()
    rows = 0
    for fields in records:
        rows += 1
        if fields.get("state") != ANSWERED:
            continue
        answer = fields.get("completion") or {}
        answers[len(answer.get("choices", ()))] += 1
        if model := (answer.get("extra") or {}).get("model"):
            answered_by.add(str(model))
        if "sent" in fields and (usage := answer.get("usage")) and len(answer["choices"]) == 1:
            tokens = max(1, usage["prompt_tokens"]), max(1, usage["completion_tokens"])
            is_cut = answer["choices"][0].get("finish_reason") == "length"
            sending = fields["sent"], max(1e-4, fields["seconds"]), fields["in_flight"], fields["prompt_bytes"]
            calls.append(Call(*sending, *tokens, is_cut))
    models = str(job.get("model") or "").split(" | ")
    models = models if len(models) > 1 else sorted(answered_by)
    if len(models) > 1:
        raise Refusal(f"{journal}: model: {', '.join(models)}; a plan is of one model, on servers that are alike")
    if job.get("call") not in _GENERATE:
        made = f"this job's call is {job['call']}"
        if job["call"] == "function":
            made = "a function of rows (client.run) makes any calls: give the journal of a map"
        raise Refusal(f"{journal}: call: {_ONE_ANSWER}, and {made}")
    if answers and max(answers, key=answers.__getitem__) != 1:
        raise Refusal(
            f"{journal}: n: {_ONE_ANSWER}, and most rows of this job have {'several' if max(answers) else 'none'}"
        )
    return calls, rows


def _asked(source: str, job: Mapping[str, Any]) -> tuple[list[tuple[int, int | None]], int]:
    """Return what some rows ask, at random, and how many rows make a request as the job's do.

    That is the bytes of the prompt, and the bound of the answer.

    Raises:
        Refusal: the input cannot be read, or none makes a request of one generated answer.
    """
    name = named(source, "IN")
    settings = job.get("settings", {})
    template = settings.get("template") or job.get("template")
    form = {"form": settings.get("rows"), "row_params": settings.get("row_params")}
    prompts = Prompts(template, job.get("call", "complete"), settings.get("system"), **form)
    try:
        with Source(source) as rows:
            if (first := rows.first()) is None:
                raise Refusal(f"{name}: it has no row")
            prompts.check_first(first, rows)
            read = Reading(rows.read(), blame(prompts.read), random_rows=_ROWS)
    except OSError as error:
        raise Refusal(f"{name}: {reason_of(error)}") from None
    except Refusal as error:
        raise Refusal(str(error).replace("--prompt", "the job's template")) from None
    if not read.drawn:
        raise Refusal(f"{name}: no row makes a request as the job's do; {'; '.join(read.faults)}")
    asked: list[tuple[int, int | None]] = []
    for each in read.drawn:
        made = prompts.read(each.row)
        params = {**job.get("parameters", {}), **made.params}
        if made.call not in _GENERATE or params.get("n", 1) not in (None, 1):
            raise Refusal(f"{name}: {each.row.where}: {_ONE_ANSWER}")
        asked.append((len(written(made)[0]), most_of(made.call, params, {})))
    return asked, read.usable


def _lengths_of(source: str, asked: Iterable[tuple[int, int | None]], calls: Sequence[Call]) -> Lengths:
    """Return the tokens of prompts and of answers that rows may have.

    Args:
        source: their input.
        asked: the bytes of each prompt, and the bound of its answer.
        calls: of the journal.

    Raises:
        NotSeen: they have other lengths than those of the journal.
    """
    rng = random.Random(0)  # noqa: S311
    tokens_per_byte = sum(each.prompt_tokens for each in calls) / sum(each.prompt_bytes for each in calls)
    answers: dict[int | None, list[int]] = {}
    lengths: list[tuple[int, int]] = []
    for size, bound in asked:
        if bound not in answers:
            answers[bound] = _answers(calls, bound)
        lengths.append((max(1, round(size * tokens_per_byte)), rng.choice(answers[bound])))
    for name, now, then in zip(
        ("prompts", "answers"), zip(*lengths, strict=True), zip(*_lengths(calls), strict=True), strict=True
    ):
        low, high = min(then), max(then)
        if sum(not low * (1 - _NEARLY) <= each <= high * (1 + _NEARLY) for each in now) > _FEW * len(now):
            raise NotSeen(
                f"its {name} had {low:,} to {high:,} tokens, and those of {source} have {min(now):,} to {max(now):,}"
            )
    return lengths


def _lengths(calls: Iterable[Call]) -> Lengths:
    return [(each.prompt_tokens, each.output_tokens) for each in calls]


def _answers(calls: Sequence[Call], bound: int | None) -> list[int]:
    """Return lengths that answers have with a bound; one that was cut off before tells none."""
    if bound is None:
        return [each.output_tokens for each in calls]
    whole = [each.output_tokens for each in calls if not each.is_cut or each.output_tokens >= bound]
    longest = max(calls, key=lambda each: (each.output_tokens, each.is_cut))
    is_unknown = not whole or (longest.is_cut and longest.output_tokens < bound)
    return [bound] if is_unknown else [min(bound, each) for each in whole]


def _plan(seen: Fit, count: int, lengths: Lengths, servers: int, limit: int, price: Price | None) -> dict[str, Any]:
    """Run the rows on simulated servers; return what so many take: low, as told, and high."""
    size = min(count, max(_ROWS, _WAVES * servers * (limit or seen.most)))
    rows = lengths if len(lengths) == size else random.Random(0).choices(lengths, k=size)  # noqa: S311
    with without_sockets(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ends, load = runner.run(_run(seen, rows, servers, limit))
    seconds, early, late = ends[-1], size * 3 // 10, size * 8 // 10
    if count > size:
        seconds += (count - size) * (ends[late] - ends[early]) / (late - early)
    prompt, answer = map(fmean, zip(*rows, strict=True))
    # The answers are drawn: those of so many rows may be longer or shorter.
    drawn = pstdev(tokens for _, tokens in rows) / answer / math.sqrt(count)
    reach = math.exp(_Z * math.hypot(seen.spread(load, prompt, answer), seen.unsteady, drawn, _LEFT_OUT))
    times = [seconds / reach, seconds, seconds * reach]
    return {
        "servers": servers,
        "limit": limit or "auto",
        "seconds": times,
        "tokens_per_s": [count * answer / each for each in reversed(times)],
        "cost": None if price is None else [servers * price.cost(seconds=each) for each in times],
    }


async def _run(seen: Fit, rows: Lengths, servers: int, limit: int) -> tuple[list[float], float]:
    """Return when rows ended, in seconds, and what a server had in flight, as a mean over the rows."""
    away = [Fault("slow", seen.away_s)] if seen.away_s else []
    made = OutputLengths(given=tuple(answer for _, answer in rows))
    server = partial(SimulatedServer, seen.profile, max_model_len_tokens=10**9, faults=away, output_lengths=made)
    served = {f"http://server-{number}/v1": SimulatorTransport(server()) for number in range(servers)}
    client = BatchClient(
        list(served),
        model="simulated",
        http=lambda url, _: served[url],
        preset="throughput",
        limit=limit or AdaptiveLimit(max=seen.most),
        from_environment=False,
    )
    # No two prompts begin alike.
    documents = [{"prompt": [place, *[0] * (tokens - 1)]} for place, (tokens, _) in enumerate(rows)]
    params: dict[str, Any] = {"max_tokens": max(made.given), "temperature": 0}
    ends: list[float] = []
    loads: list[int] = []
    async with client:
        began = asyncio.get_running_loop().time()
        async for _ in client.stream_map(documents, rows="prompt", ordered=False, **params):
            loads.append(client.statistics().in_flight)
            ends.append(asyncio.get_running_loop().time() - began)
        # Of the answers as they were drawn.
        share = sum(made.given) / client.statistics().completion_tokens
    return [each * share for each in ends], max(1.0, fmean(loads) / servers)
