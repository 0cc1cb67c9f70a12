"""``batchclient plan``: what a job would take on so many servers, with another limit.

Rules:
- A server is fitted to the journal of a job. The client itself runs the rows on simulated servers
  of that profile, in virtual time: nothing is sent.
- What the journal has not seen is refused, with the pilot that would show it: more sequences at a
  server, or far fewer; prompts and answers of other lengths; all from one load.
- An interval has what the fit leaves open, and what a formula of so few numbers leaves out.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, pstdev
from typing import Annotated, Any

import typer

from batchclient import AdaptiveLimit, BatchClient, Price
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
from batchclient.simulator import Fault, OutputLengths, SimulatedServer, SimulatorTransport
from batchclient.simulator.fit import Call, Fit, NotSeen, fit
from batchclient.testing import VirtualLoop

__all__ = ["plan"]

_ROWS, _WAVES = 1000, 3
"""Rows that run, or what fills the servers so often; a longer job goes on as the middle did."""
_NEARLY, _FEW = 0.25, 0.05
"""Lengths so near to those seen are seen, too; and this share of the rows may be further away."""
_LEFT_OUT = 0.03
"""What the formula leaves out, as a relative standard error."""
_Z = 1.645
_PILOT = 200
_TOLD = ("seconds", "tokens_per_s")
_COLUMNS = "{:>7} {:>6} {:>26} {:>26} {:>26}"

Lengths = Sequence[tuple[int, int]]
"""Tokens of the prompt and of the answer of each row."""


def plan(
    journal: Annotated[str, typer.Argument(metavar="JOURNAL", help="Of a job or a pilot; or its output.")],
    source: Annotated[str | None, typer.Argument(metavar="IN", help="Other rows, read as the job's.")] = None,
    *,
    servers: Annotated[str, of_job("How many servers; one or several numbers.", "N,…")] = "1",
    limit: Annotated[str, of_job("Sequences in flight per server: numbers, or auto.", "N,…")] = "auto",
    gpu_price: Annotated[float | None, of_job("Of an hour of one server.", "P")] = None,
    as_json: Annotated[bool, of_job("Write JSON.", None, "--json")] = False,
) -> None:
    """Tell what a job would take: seconds, tokens/s and cost, each with a 90 % interval.

    A server is fitted to the journal, and the client runs the job there in virtual time. What the
    journal has not seen is refused, with the pilot that would show it. Exit status: 0, or 2.
    """
    counts, limits = _numbers(servers, "--servers"), _numbers(limit, "--limit", "auto")
    price = None if gpu_price is None else Price(per_hour=gpu_price)
    with opened(journal) as held:
        calls, job = [*_calls_in(held.records())], held.job or {}
    more = max((each.in_flight for each in calls), default=0) // 8
    try:
        seen, more = fit(calls), 0
        rows, lengths = (len(calls), _lengths(calls)) if source is None else _rows_of(source, calls, job)
        for more in limits:
            most = max(min(more, math.ceil(rows / count)) for count in counts)
            if most > seen.most or 0 < 2 * more < seen.least:
                raise NotSeen(f"its servers had {seen.least:.0f} to {seen.most} sequences each, and not {most}")
    except NotSeen as error:
        pilot = f"--pilot {max(_PILOT + len(calls), 2 * more)} --concurrency {more or 'auto'}"
        shows = f"a pilot of a minute shows it: batchclient map {source or 'IN'} -o OUT {pilot}"
        raise Refusal(f"{journal}: {error}; {shows}") from None
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


def _numbers(text: str, option: str, word: str | None = None) -> list[int]:
    """Read whole numbers from 1 on, between commas; the word is 0."""
    found = [0 if each == word else int(each) if each.isascii() and each.isdigit() else -1 for each in text.split(",")]
    if min(found) < 0 or "0" in text.split(","):
        raise Refusal(
            f"{option}: whole numbers from 1 on, between commas{f', or {word}' if word else ''}; not {text!r:.40}"
        )
    return found


def _calls_in(records: Iterable[Mapping[str, Any]]) -> Iterator[Call]:
    """Yield the rows of which a journal says when they were sent, and how many tokens they had."""
    for fields in records:
        answer = fields.get("completion") or {}
        if "sent" in fields and (usage := answer.get("usage")) and len(answer["choices"]) == 1:
            tokens = max(1, usage["prompt_tokens"]), max(1, usage["completion_tokens"])
            is_cut = answer["choices"][0].get("finish_reason") == "length"
            sending = fields["sent"], max(1e-4, fields["seconds"]), fields["in_flight"], fields["prompt_bytes"]
            yield Call(*sending, *tokens, is_cut)


def _rows_of(source: str, calls: Sequence[Call], job: Mapping[str, Any]) -> tuple[int, Lengths]:
    """Return how many rows make a request as the job's do, and the lengths of some, at random.

    Raises:
        Refusal: the input cannot be read, or none makes a request.
        NotSeen: prompts or answers have other lengths than those of the journal.
    """
    settings = job.get("settings", {})
    template = settings.get("template") or job.get("template")
    form = {"form": settings.get("rows"), "row_params": settings.get("row_params")}
    prompts = Prompts(template, job.get("call", "complete"), settings.get("system"), **form)
    try:
        with Source(source) as rows:
            read = Reading(rows.read(), blame(prompts.read), random_rows=_ROWS)
    except OSError as error:
        raise Refusal(f"{named(source, 'IN')}: {reason_of(error)}") from None
    if not read.drawn:
        raise Refusal(f"{named(source, 'IN')}: no row makes a request as the job's do; {'; '.join(read.faults)}")
    rng = random.Random(0)  # noqa: S311
    tokens_per_byte = sum(each.prompt_tokens for each in calls) / sum(each.prompt_bytes for each in calls)
    answers: dict[int | None, list[int]] = {}
    lengths: list[tuple[int, int]] = []
    for each in read.drawn:
        made = prompts.read(each.row)
        bound = most_of(made.call, {**job.get("parameters", {}), **made.params}, {})
        if bound not in answers:
            answers[bound] = _answers(calls, bound)
        prompt = round(len(written(made)[0]) * tokens_per_byte)
        lengths.append((max(1, prompt), rng.choice(answers[bound])))
    for name, now, then in zip(
        ("prompts", "answers"), zip(*lengths, strict=True), zip(*_lengths(calls), strict=True), strict=True
    ):
        low, high = min(then), max(then)
        if sum(not low * (1 - _NEARLY) <= each <= high * (1 + _NEARLY) for each in now) > _FEW * len(now):
            raise NotSeen(
                f"its {name} had {low:,} to {high:,} tokens, and those of {source} have {min(now):,} to {max(now):,}"
            )
    return read.usable, lengths


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
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
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
