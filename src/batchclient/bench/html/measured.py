"""What was measured, as rows of a report: server, client, calls, loads, times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from batchclient.bench.report import Report
from batchclient.bench.summary import Summary

__all__ = ["facts"]


def facts(report: Report, summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Return names and facts.

    Args:
        report: of the measurement.
        summaries: of its settings.
    """
    about = report.about
    server, client, machine, times = (about[part] for part in ("server", "client", "machine", "times"))
    openai = f", openai {client['openai']}" if client.get("openai") else ""
    parts = [f"{times[name]:g}" for name in ("warm_up_s", "window_s", "grace_s")]
    rows = [
        ("Server", f"{server.get('name') or 'unknown kind'}, at {server.get('url')}"),
        ("Model", str(server.get("model"))),
        ("Client", f"batchclient {client.get('batchclient')}, Python {client.get('python')}{openai}"),
        ("Machine of the client", f"{machine.get('cores')} cores, {machine.get('system')}"),
        *_calls(about["workload"]),
        *_loads(summaries, about["workload"]),
        ("Times of a cell", f"{parts[0]} s warm-up, {parts[1]} s window, {parts[2]} s grace at most"),
        ("Repetitions", _repetitions(summaries)),
        ("Objectives", "; ".join(map(str, report.slos)) or "none"),
        ("Seed", str(about["workload"].get("seed"))),
        ("Started", str(about["started"])),
    ]
    return [row for row in rows if row[1]]


def _calls(workload: dict[str, Any]) -> list[tuple[str, str]]:
    own, spread = workload.get("own_prompts"), workload.get("spread")
    lengths = f"lengths spread by {spread:g} (the deviation of their logarithm)" if spread else "all of one length"
    prompts = f"{own:,} own prompts in turn" if own else f"{workload.get('prompt_tokens'):,} tokens, {lengths}"
    reuse = workload.get("prefix_reuse")
    if workload.get("call") == "embed":
        answers = "embeddings"
    else:
        exact = "each" if workload.get("fixed_length") else "at most, as the server ends them"
        answers = f"{workload.get('output_tokens'):,} tokens {exact}"
    return [
        ("Calls", str(workload.get("call"))),
        ("Prompts", prompts),
        ("Answers", answers),
        ("Shared beginning of prompts", _shared(reuse, is_own=bool(own))),
    ]


def _shared(reuse: float | None, *, is_own: bool) -> str:
    if is_own:
        return "none: each has a number in front" if reuse is None else "that of the prompts themselves"
    return f"{reuse:.0%} of each" if reuse else "none: prompts differ from the first token"


def _loads(summaries: Iterable[Summary], workload: dict[str, Any]) -> list[tuple[str, str]]:
    settings = [summary.setting for summary in summaries]
    callers = sorted({each.concurrency for each in settings if each.rate is None and each.concurrency is not None})
    rates = sorted({each.rate for each in settings if each.rate is not None})
    told = []
    if callers:
        told.append(f"closed: {_listed(callers)} in flight")
    if rates:
        burstiness = workload.get("burstiness", 1.0)
        bursts = "Poisson" if burstiness == 1 else f"burstiness {burstiness:g}"
        told.append(f"open ({bursts}): {_listed(rates)} calls/s")
    return [("Loads", "; ".join(told))]


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:,g}" for value in values)


def _repetitions(summaries: Sequence[Summary]) -> str:
    counts = sorted({len(summary.cells) for summary in summaries})
    if not counts:
        return "none"
    if len(counts) == 1 and counts[0] < 3:
        return f"{counts[0]}: rates have no intervals"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} of a setting"
