"""The sections of ``docs/benchmarks.md`` and the table of ``README.md``, from ``results/*.json``.

Rules:
- Both pages read the same JSON, so that one figure cannot differ between them.
- A section has the figures that a user decides by. ``benchmarks/results/*.md`` has all rows.
- Each section names the commit, the machine, the time and the command of every run that it shows.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import _pictures as pictures
from _common import median, spread, table
from _limits_report import BEST_FIXED, DEFAULT, NO_PAGE, best_fixed, named, rate
from _provenance import sources
from first_job import ratios as job_ratios
from first_job import seconds
from night import medians as night_medians
from on_gpu import DEFAULT as GPU_DEFAULT
from on_gpu import ENGINE
from on_vllm import OURS, THEIRS, best_rival, middle, ratio_values

Result = dict[str, Any]

COLUMNS = 100
"""Prose and table rows of the README end here."""
RIVAL = "AsyncOpenAI"


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its results, the text that they make, and its pictures.

    Args:
        results: names in ``benchmarks/results``, all of which ``text`` and each picture take.
        pictures: by file name, with what the picture shows, for who cannot see it.
    """

    title: str
    results: tuple[str, ...]
    text: Callable[..., list[str]]
    pictures: dict[str, tuple[str, Callable[..., None]]] = field(default_factory=dict)

    def markdown(self, data: Sequence[Result], images: Path) -> str:
        """Return the section; draw its pictures into ``images``."""
        parts = [f"## {self.title}", *self.text(*data)]
        for name, (shown, draw) in self.pictures.items():
            draw(*data, images / name)
            parts.append(f"![{shown}](images/{name})")
        parts += provenance(self.results, data)
        return "\n\n".join(parts)


def provenance(names: Sequence[str], data: Sequence[Result]) -> list[str]:
    """Say on which machine, at which commit, when and by which command the results were made."""
    runs = list(dict.fromkeys(source for each in data for source in sources(each)))
    machines = ", or ".join(dict.fromkeys(f"{run.cpu}, {run.cores} cores" for run in runs))
    rows = ", ".join(f"[{name}.md](../benchmarks/results/{name}.md)" for name in names)
    commands = "\n".join(f"    {run.commit}  {run.date}  {run.command}" for run in runs)
    return [prose(f"{machines}; all rows in {rows}; commit, time and command:"), commands]


def prose(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def short(seconds_taken: float) -> str:
    return f"{seconds_taken:.3g}"


# --- client CPU ---

FORMS = {
    "plain": "`BatchClient`, plain batches (`max_tokens` ≤ 4)",
    "plain_balanced": 'the same, `preset="balanced"`',
    "streamed": "`BatchClient`, streamed batches",
    "streamed_spaced": "the same, each event 1 ms after the last",
    "floor": "a micro-batcher by hand, without retries or checks",
    "openai_aiohttp": "`AsyncOpenAI` with its aiohttp client",
    "openai": "`AsyncOpenAI`",
}


def cpu_rows(loop: Result, labels: dict[str, str], rival: str) -> list[list[str]]:
    rows = []
    for name, label in labels.items():
        runs, others = loop[name]["runs"], loop[rival]["runs"]
        pairs = zip(runs, others, strict=True)
        ratios = [per_call_us(one) / per_call_us(other) for one, other in pairs]
        calls_per_s = median([run["measured"]["calls"] / run["measured"]["wall_s"] for run in runs])
        share = f"{median(ratios):.3f} ({spread(ratios)})" if name != rival else "1"
        rows.append([label, f"{loop[name]['cpu_us']:,.1f}", share, f"{calls_per_s:,.0f}"])
    return rows


def per_call_us(run: Result) -> float:
    return run["measured"]["cpu_s"] / run["measured"]["calls"] * 1e6


def overhead(data: Result) -> list[str]:
    header = ("client", "CPU µs/call", "of `AsyncOpenAI`'s (min to max)", "calls/s")
    lone = {name: median(values) for name, values in data["lone_ms"].items()}
    added = next(target for target in data["targets"] if "lone call, preset balanced" in target["name"])
    return [
        prose(
            "The CPU of the client's process, beside a server on the same machine that answers at once."
            " 64 calls are in flight; `limit=64`; one token each. Batches are plain where `max_tokens` is at most 4,"
            " and streamed above."
        ),
        table(header, cpu_rows(data["loop"], FORMS, "openai")),
        prose(
            f"A lone call on an idle client takes {lone['balanced']:.2f} ms, and `httpx.post` with the same body"
            f" {lone['httpx.post']:.2f} ms. The difference within a block of calls is {added['value']:.2f} ms"
            f" ({spread(added['values'])})."
        ),
    ]


DROP_IN = {
    "drop_in": "`batchclient.openai.AsyncOpenAI`",
    "transport": "`AsyncOpenAI` over `BatchTransport`",
    "openai": "`AsyncOpenAI`",
}
DROP_IN_CHAT = {"drop_in_chat": "`batchclient.openai.AsyncOpenAI`, chats", "openai_chat": "`AsyncOpenAI`, chats"}


def drop_in(data: Result) -> list[str]:
    rows = cpu_rows(data["loop"], DROP_IN, "openai") + cpu_rows(data["loop"], DROP_IN_CHAT, "openai_chat")
    return [
        prose("The same measure for code that keeps openai's client or its calls ([how](how-to/openai.md))."),
        table(("client", "CPU µs/call", "of `AsyncOpenAI`'s (min to max)", "calls/s"), rows),
    ]


def million(data: Result) -> list[str]:
    return [
        prose(
            f"`stream_map` over {data['documents']:,} documents with `max_tokens={data['max_tokens']}`, beside the same"
            f" server: {data['documents_per_s']:,.0f} documents/s, {data['cpu_us_per_document']:.1f} µs of client CPU"
            f" each, {data['peak_mib']:.0f} MiB at the most. Every answer was checked."
        )
    ]


def night(data: Result) -> list[str]:
    rows = []
    for name, runs in data["runs"].items():
        middle = night_medians(runs)
        written, again = (
            f"{middle[column]:,.0f} of {middle['answered_before']:,.0f}" for column in ("written_before", "sent_again")
        )
        whole = [f"{middle[column]:,.0f}" for column in ("lost", "twice", "torn")]
        rows.append([name, written, *whole, again, f"{middle['tokens_twice']:,.0f}", f"{middle['resume_s']:.1f}"])
    job = data["job"]
    header = (
        "tool",
        "answers in the output at the kill",
        "rows lost",
        "rows twice",
        "lines torn",
        "answered rows sent again",
        "tokens paid twice",
        "s to the whole output",
    )
    parts = [
        prose(
            f"{job['rows']:,} rows of {job['max_tokens']} tokens on a simulated server, {job['concurrency']} in flight."
            " SIGKILL falls when about half of the rows are answered. Then the same command is started again, as the"
            " tool's documentation says. The time counts from the kill."
        ),
        table(header, rows),
        prose(
            "`batchclient` holds answers for up to 0.2 s, and writes them to the disk together: so many are sent again."
            " A script that appends a line per answer sends fewer again, and syncs nothing: a power cut is not"
            " measured here. Rows in flight at the kill are sent again by every tool."
        ),
    ]
    if any("run-batch" in name for name in data["runs"]):
        parts.append(
            prose(
                "`vllm run-batch` is an engine with a toy model, and no client. Its rows are counted from its progress"
                " and its output alone, and its time holds the start of the engine. Its progress comes in large steps,"
                " so its kill falls later."
            )
        )
    return parts + [prose(f"Not run: {each}.") for each in data["not_run"]]


def bulk(data: Result) -> list[str]:
    rows = []
    for name, arm in data["arms"].items():
        figures = [f"{arm[column]:,.0f}" for column in ("rows_per_s", "last_rows_per_s", "growth_mib", "peak_mib")]
        resume = f"{arm['resume_s']:.1f} s, {arm['resume_mib']:.0f} MiB" if "resume_s" in arm else ""
        rows.append([name, f"{arm['rows']:,}", *figures, resume])
    header = ("job", "rows", "rows/s", "in the last tenth", "memory's growth, MiB", "peak, MiB", "resume once finished")
    return [
        prose(
            "Answers of some 1 KB, one token each, beside a server on the same machine that answers at once. Each row"
            " is in the journal, and for the command in the output, before it counts. Memory grows from the end of the"
            " first tenth. A resume of the finished job reads the whole input, and sends nothing."
        ),
        table(header, rows),
    ]


def sync(data: Result) -> list[str]:
    rows = []
    for callers, arms in data["callers"].items():
        ours, theirs = arms["sync"], arms["openai"]
        ratios = [a["cpu_us"] / b["cpu_us"] for a, b in zip(ours, theirs, strict=True)]
        cells = [callers]
        for arm in (ours, theirs):
            cells.append(f"{median([run['cpu_us'] for run in arm]):,.0f}")
        cells.append(f"{median(ratios):.2f} ({spread(ratios)})")
        for arm in (ours, theirs):
            cells.append(f"{median([run['measured']['calls'] / run['measured']['wall_s'] for run in arm]):,.0f}")
        rows.append(cells)
    header = ("threads", "`SyncBatchClient`, CPU µs/call", "`openai.OpenAI`", "ratio", "calls/s", "`openai.OpenAI`")
    return [
        prose("Each thread makes one call after the other, of one token, beside the same server; `limit=256`."),
        table(header, rows),
    ]


# --- a real vLLM ---

KINDS = {"complete": "completions", "chat": "chats", "embed": "embeddings"}


def on_vllm(data: Result) -> list[str]:
    rows: list[list[str]] = []
    runs: dict[str, list[Result]] = {OURS: [], THEIRS: []}
    for case in data["cases"]:
        theirs = best_rival(case)
        ours = theirs.replace(THEIRS, OURS)
        runs[OURS] += case["runs"][ours]
        runs[THEIRS] += case["runs"][theirs]
        tokens, _, made = case["cell"].partition("x")
        out = "" if case["call"] == "embed" else f", {made.replace('mixed', 'up to 64')} out"
        row = [f"{KINDS[case['call']]}, {tokens} in{out}", theirs.split()[-3]]
        for figure, digits in (("per_s", 0), ("p95_ms", 0), ("api_ms", 2)):
            values = ratio_values(case, ours, theirs, figure)
            row.append(", ".join(f"{middle(case['runs'][name], figure):,.{digits}f}" for name in (ours, theirs)))
            row.append(f"{median(values):.2f} ×" + f" ({spread(values)})" * (figure == "per_s"))
        rows.append(row)
    header = ("calls, tokens", "callers", "calls/s: ours, theirs", "ratio", "p95 ms", "ratio", "API CPU ms", "ratio")
    marks = [mark for each in runs.values() for run in each for mark in run["marks"]]
    marked = {name: f"{sum(bool(run['marks']) for run in each)} of {len(each)}" for name, each in runs.items()}
    noise = (
        f"`batchclient bench` would compare nothing here: it marks {marked[THEIRS]} runs of `AsyncOpenAI` and"
        f" {marked[OURS]} of `BatchClient` ({', '.join(sorted(set(marks)))}). Besides the server such a run measures"
        " its client, which has no core of its own here."
    )
    return [
        prose(
            "A toy model on vLLM 0.32. Client and server share two cores. `BatchClient` is as it comes, with as many"
            " callers as `AsyncOpenAI` at its best of 64 and 256; chats ([how they are sent](explanation/chat.md)) have"
            " 64. Ratios are medians of those within a repetition (smallest to largest)."
        ),
        table(header, rows),
        prose(
            "Much of the gain in calls/s is the client's own CPU. A client on another machine would not take that CPU"
            " from the server. The server's API process is spared wherever the client runs."
        ),
        *([prose(noise)] if marks else []),
    ]


def on_gpu(data: Result) -> list[str]:
    """The default client, the best of openai's by calls/s, and the engine where it had as many calls."""
    rows: list[list[str]] = []
    for server, own in data["servers"].items():
        for job, arms in own["jobs"].items():
            if GPU_DEFAULT not in arms or not any(arm.startswith(RIVAL) for arm in arms):
                continue

            def rate(arm: str, arms: Result = arms) -> float:
                return median([run["calls_per_s"] for run in arms[arm]])

            theirs = max((arm for arm in arms if arm.startswith(RIVAL)), key=rate)
            calls = arms[GPU_DEFAULT][0]["calls"]
            engine = rate(ENGINE) if ENGINE in arms and arms[ENGINE][0]["calls"] == calls else None
            cpu_us = [median([run["client_cpu_us"] for run in arms[arm]]) for arm in (GPU_DEFAULT, theirs)]
            rows.append(
                [
                    re.sub(r".* (\d+(?:\.\d+)?) billion.*", r"\1 B", server),
                    f"{calls:,} {job}",
                    f"{rate(GPU_DEFAULT):,.0f}",
                    f"{rate(theirs):,.0f} ({theirs.removeprefix(RIVAL).removeprefix(', ')})",
                    f"{rate(GPU_DEFAULT) / rate(theirs):.2f} ×",
                    f"{engine:,.0f}, {rate(GPU_DEFAULT) / engine:.2f} ×" if engine else "",
                    ", ".join(f"{each:,.0f}" for each in cpu_us),
                ]
            )
    facts = next(iter(data["servers"].values()))["facts"][0]
    card, driver, _memory = facts["card"].split(", ")
    header = (
        "model",
        "job",
        "calls/s, default client",
        "`AsyncOpenAI` at its best (in flight)",
        "ratio",
        "`LLM.generate`, and our ratio to it",
        "client CPU µs/call: ours, theirs",
    )
    return [
        prose(
            f"{card}, driver {driver}, vLLM {facts['packages']['vllm']} with 1,024 sequences, models of random weights"
            " in bf16, client and server on one machine. All calls of a job begin at once; the rate counts to the last"
            " answer. `AsyncOpenAI` had 256, 512 and all calls in flight. `LLM.generate` is the engine in a process of"
            " its own, without HTTP, with as many calls and no warm-up. Each job ran once, so a difference of a tenth"
            " may be chance."
        ),
        table(header, rows),
        prose(
            "**We lost where answers are long and each is a request of its own**, as chats of 512 tokens are: the"
            " client streamed them, and vLLM before 0.27 sends an event for each token, which costs client and server"
            " ten times the CPU of a plain answer. Such calls [go plain"
            " since](explanation/batching.md#how-a-reply-travels); on a GPU this was not measured again."
        ),
    ]


def best_of_round(case: Result) -> list[float]:
    """The seconds of the fastest ``AsyncOpenAI`` arm, round by round."""
    arms = [runs for name, runs in case["runs"].items() if name.startswith(RIVAL)]
    return [min(seconds(run) for run in runs) for runs in zip(*arms, strict=True)]


def first_job(data: Result) -> list[str]:
    rows = []
    for case in data["cases"]:
        ratios = job_ratios(case, "batchclient")
        arms = (case["runs"]["batchclient"], case["runs"][f"{RIVAL}, all at once"])
        own, at_once = (median([seconds(run) for run in runs]) for runs in arms)
        best = median(best_of_round(case))
        rows.append(
            [case["cell"], short(own), short(at_once), short(best), f"{median(ratios):.2f}", f"{max(ratios):.2f}"]
        )
    header = (
        "calls × tokens",
        "`BatchClient`, s",
        "`AsyncOpenAI` + `gather`, s",
        "at its best, s",
        "ours over its best",
        "worst round",
    )
    return [
        prose(
            "On a toy model in vLLM 0.32, which shares two cores with the client. All calls at once with a fresh"
            " default client: seconds until the last answer. `AsyncOpenAI` at its best is the fastest of all at once,"
            " 64 and 256 in flight, round by round."
        ),
        table(header, rows),
    ]


def limits(data: Result) -> list[str]:
    rows = []
    for case in data["cases"]:
        at_most = data["max_other"]
        own, best = rate(case, DEFAULT, at_most), best_fixed(case, at_most)
        if own is None or best is None:
            rows.append([named(case), "too noisy", "", "", "", ""])
            continue
        fixed = [name for name in case["runs"] if name not in (DEFAULT, NO_PAGE)]
        best_name = next(name for name in fixed if rate(case, name, at_most) == best)
        last = median([run["limit"] for run in case["runs"][DEFAULT]])
        rows.append([named(case), f"{own:.0f}", f"{best:.0f}", best_name, f"{own / best:.2f}", f"{last:.0f}"])
    header = ("load", "default, answers/s", BEST_FIXED, "its limit", "share", "the default's at the end")
    return [
        prose(
            'The default `limit="auto"` beside fixed limits from 4 to 256, on the same vLLM, under loads that do not'
            " end. The default client has searched before its first window ([how](explanation/limits.md))."
        ),
        table(header, rows),
    ]


def odd_servers(data: Result) -> list[str]:
    header = (
        "server",
        "default",
        "`throughput`",
        "`AsyncOpenAI`, best",
        "raw, best",
        "default over raw",
        "refused after 2 s: default, `throughput`",
    )
    rows, rests = [], []
    for case in data["servers"].values():
        arms = case["arms"]
        speeds = {name: median([run["calls_per_s"] for run in arm["runs"]]) for name, arm in arms.items()}
        later = [median([run["refused_later"] for run in arms[name]["runs"]]) for name in ("default", "throughput")]
        cells = [calls_per_s(arms[name]) for name in ("default", "throughput", "openai", "raw")]
        share = f"{speeds['default'] / speeds['raw']:.2f}"
        rows.append([case["label"], *cells, share, ", ".join(f"{each:.0%}" for each in later)])
        if case["rests"]:
            rests = [sum(run["rests_broken"] for run in arms[name]["runs"]) for name in ("default", "throughput")]
    calls = {case["calls"] for case in data["servers"].values()}
    number = " to ".join(f"{each:,}" for each in sorted({min(calls), max(calls)}))
    parts = [
        prose(
            f"Calls/s of {number} calls at once, with answers of 54 tokens in the mean, by a"
            " client that knows nothing of the server. A proxy before the simulator refuses what the server does not"
            " bear. `AsyncOpenAI` is at its best of 16, 64 and 256 in flight, and has its own two retries. Raw is"
            " `httpx` with lists of a fixed size, at the best of five sizes and numbers."
        ),
        table(header, rows),
    ]
    if rests:
        broken = f"by the default {rests[0]} times, with `throughput` {rests[1]} times"
        held = "was kept to its end by both clients" if not any(rests) else f"was broken {broken}"
        parts.append(prose(f"Each rest that a `Retry-After` asked for {held}, in all runs."))
    return parts


def calls_per_s(arm: Result) -> str:
    """Return the median, the setting, and how many calls failed."""
    failed = sum(run["failed"] for run in arm["runs"])
    beside = [arm["setting"]] if arm["setting"] else []
    beside += [f"**{failed} failed**"] if failed else []
    value = f"{median([run['calls_per_s'] for run in arm['runs']]):.0f}"
    return f"{value} ({', '.join(beside)})" if beside else value


# --- batch sizes, and a rate ---


def sizing(data: Result) -> list[str]:
    """Return the table of latency by batch size, and the one of arrivals that are answered in time."""
    cases = {case["cell"]: case for case in data["cases"]}
    by_size = {(each["strategy"], each["size"]): each for each in cases["sizes"]["rows"]}
    sizes = sorted({size for strategy, size in by_size if strategy == "lists"})
    rows = [[str(size), *of_size(by_size["lists", size]), *of_size(by_size["streamed", size])] for size in sizes]
    rows.insert(0, ["1", *of_size(by_size["singles", None]), "", ""])
    rows.append(["as the client chooses", *of_size(by_size["adaptive", None]), "", ""])
    rows.append(["`AsyncOpenAI`, 1", *of_size(by_size["async-openai", None]), "", ""])
    arrivals = {(each["strategy"], each["rate"]): each for each in cases["rates"]["rows"]}
    rates = sorted({rate for _, rate in arrivals})
    kept = [
        [f"{rate:,.0f}", *of_rate(arrivals["adaptive", rate]), *of_rate(arrivals["async-openai", rate])]
        for rate in rates
    ]
    parts = [
        prose(
            "`batchclient bench` on a vLLM with `--max-num-seqs 256`, three times each, interleaved. First 64 calls in"
            " flight, with prompts of 64 tokens and answers of 16. Tokens are those of prompts and answers. A star"
            " marks figures that `bench` does not trust: on two cores the client's process was late, or calls failed."
        ),
        table(("prompts per request", "plain: tokens/s", "p95 ms", "streamed: tokens/s", "p95 ms"), rows),
        prose(
            "Then Poisson arrivals of calls with prompts of 20 tokens and answers of one: the share that is answered"
            " within 400 ms of its arrival, and the 95th percentile."
        ),
        table(("arrivals/s", "`BatchClient`", "p95 ms", "`AsyncOpenAI`", "p95 ms"), kept),
        prose(thousand(cases["find"])),
    ]
    if "loads" in cases:
        parts += [
            prose(
                "At last 4 to 256 calls in flight, as the command's"
                " [report](reports/vllm_loads.html), one file for a browser, shows them:"
            ),
            "![calls per second by concurrency, and the 95th percentile](images/bench_report.png)",
        ]
    return parts


def thousand(case: Result) -> str:
    """Return the answer to a thousand requests a second."""
    found = case["recommendation"]
    if not found:
        return "`--find rate` found no rate that keeps the objective."
    doubt = "" if found["decided"] else ", and calls this not decided"
    servers = math.ceil(1000 / found["rate"]) + 1
    return (
        f"`--find rate` gave {found['rate']:,.0f} calls/s{doubt}. By [the rule](how-to/plan-a-service.md), a thousand"
        f" requests a second take {servers} servers of this kind."
    )


def starred(row: Result) -> str:
    return " *" if row["marks"] else ""


def of_size(row: Result) -> list[str]:
    return [f"{row['tokens_per_s']['value']:,.0f}", f"{row['p95_s']['value'] * 1e3:,.0f}{starred(row)}"]


def of_rate(row: Result) -> list[str]:
    p95 = f"{row['p95_s']['value'] * 1e3:,.0f}{starred(row)}" if row["p95_s"] else ""
    return [f"{row['slo_shares'][0]['value']:.1%}", p95]


# --- order ---


def length_grouping(data: Result) -> list[str]:
    rows = []
    for answers, limits_of in data["parts"]["static"].items():
        arms = limits_of["found (the default)"]
        base = arms["arrival order"]
        shares = [f"{fmean(arms[arm]) / fmean(base):.2f}" for arm in ("nearest lengths", "one bucket")]
        rows.append(["simulated, pads", answers, *shares])
    for answers, arms in data["parts"]["vllm"].items():
        shares = []
        for arm in ("nearest lengths", "one bucket"):
            pairs = zip(arms[arm], arms["arrival order"], strict=True)
            shares.append(f"{median([one / other for one, other in pairs]):.2f}")
        rows.append(["a real vLLM", answers, *shares])
    header = ("server", "answers", "nearest lengths (the default)", "one bucket (`Batching(length_reach=0)`)")
    return [
        prose(
            "Answers/s over those of batches in order of arrival, for texts that differ in length"
            " ([`length_reach`](how-to/settings.md)). The simulated server has the default limit,"
            " the real one `limit=128`."
        ),
        table(header, rows),
    ]


def prefix(data: Result) -> list[str]:
    rows = []
    for max_size, arms in data["runs"].items():
        base = [run["per_s"] for run in arms["grouped by hand"]]
        row = [max_size, f"{median(base):.0f}"]
        for arm in ("shuffled, grouped by prefix", "shuffled"):
            ratios = [run["per_s"] / other for run, other in zip(arms[arm], base, strict=True)]
            row.append(f"{median(ratios):.2f} ({spread(ratios)})")
        rows.append(row)
    header = (
        "`Batching(max_size=…)`",
        "grouped by hand, prompts/s",
        "shuffled, the default",
        "`Schedule(group_prefixes=False)`",
    )
    return [
        prose(
            "Prompts whose shared prefixes do not fit the cache of the same vLLM together. Shuffled input, over input"
            " that is grouped by hand ([how](explanation/prefixes.md))."
        ),
        table(header, rows),
    ]


SECTIONS = {
    "overhead": Section(
        "What a call costs your process",
        ("overhead",),
        overhead,
        {"benchmark_cpu_per_call.png": ("client CPU per call, by client", pictures.cpu_per_call)},
    ),
    "drop_in": Section("What a call of openai's costs your process", ("drop_in",), drop_in),
    "million": Section(
        "A million documents",
        ("million",),
        million,
        {"benchmark_million_memory.png": ("memory over a million documents", pictures.million_memory)},
    ),
    "bulk": Section("Durable jobs of millions of rows", ("bulk",), bulk),
    "night": Section("A job that is killed", ("night",), night),
    "sync": Section("Blocking calls from threads", ("sync",), sync),
    "on_gpu": Section("On a GPU", ("on_gpu",), on_gpu),
    "on_vllm": Section("On a real vLLM", ("on_vllm",), on_vllm),
    "first_job": Section(
        "A first job",
        ("first_job",),
        first_job,
        {"benchmark_first_job.png": ("how much sooner a job ends than with AsyncOpenAI", pictures.first_job)},
    ),
    "limits_vllm": Section(
        "Limits",
        ("limits_vllm",),
        limits,
        {"benchmark_limits.png": ("answers/s of the default limit, over the best fixed one's", pictures.limits)},
    ),
    "odd_servers": Section("Servers that bear less", ("odd_servers",), odd_servers),
    "sizing": Section("Batch sizes, and a thousand requests a second", ("sizing",), sizing),
    "length_grouping": Section("Grouping by length", ("length_grouping",), length_grouping),
    "prefix": Section("Shared prefixes", ("prefix",), prefix),
}
"""By the name in the page's markers, in the page's order."""


README_RESULTS = ("overhead", "first_job", "million")


def readme(overhead_: Result, jobs: Result, documents: Result) -> str:
    """Return the README's table of five figures."""
    loop = overhead_["loop"]
    lone = {name: median(values) for name, values in overhead_["lone_ms"].items()}
    cases = {case["cell"]: case for case in jobs["cases"]}
    rows = [
        [
            "client CPU per call of one token",
            f"{loop['plain']['cpu_us']:,.1f} µs",
            f"{loop['openai']['cpu_us']:,.0f} µs",
        ]
    ]
    for cell, said in (("3,000 × 1", "3,000 calls of 1 token"), ("300 × 256", "300 calls of 256 tokens")):
        own = median([seconds(run) for run in cases[cell]["runs"]["batchclient"]])
        best = median(best_of_round(cases[cell]))
        rows.append([f"{said}, on a real vLLM", f"{short(own)} s", f"{short(best)} s at its best"])
    rows.append(["a lone call", f"{lone['balanced']:.2f} ms", f"{lone['httpx.post']:.2f} ms with `httpx.post`"])
    rows.append(
        [
            f"{documents['documents']:,} documents, `stream_map`",
            f"{documents['documents_per_s']:,.0f}/s, {documents['peak_mib']:.0f} MiB at the most",
            "",
        ]
    )
    return table(("figure", "`batchclient`", "`AsyncOpenAI`"), rows)
