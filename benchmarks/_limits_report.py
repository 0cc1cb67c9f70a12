"""Results of ``limits_vllm.py``: as a table, and compared with its bars."""

from __future__ import annotations

from typing import Any

from _common import median, spread, table

DEFAULT, NO_PAGE = "default", "server_metrics=False"
"""The arms whose limit finds itself. All others are fixed ones."""
BEST_FIXED = "best fixed"
"""The fixed limit with the most answers per second. Most bars are a share of its figure."""


LOADS = {
    "ten turns on a prefix": "conversations of ten turns",
    "1 s, 64 tokens": "callers that wait 1 s",
    "300 agents": "300 agents that pause",
}


def named(case: dict[str, Any]) -> str:
    """A case's name for readers of a page or a picture."""
    name = case["case"]
    tokens = name.removeprefix("max_tokens ")
    if tokens == name:
        return LOADS.get(name, name)
    return {"1": "1 token each", "mixed": "4 to 128 tokens each"}.get(tokens, f"{tokens} tokens each")


def kept(case: dict[str, Any], name: str, max_other: float) -> list[dict[str, float]]:
    return [run for run in case["runs"][name] if not run["other"] > max_other]


def rate(case: dict[str, Any], name: str, max_other: float) -> float | None:
    """The median answers per second; ``None`` if no window was quiet or the arm was left out."""
    rates = [run["per_s"] for run in kept(case, name, max_other)] if name in case["runs"] else []
    return median(rates) if rates else None


def best_fixed(case: dict[str, Any], max_other: float) -> float | None:
    """The best fixed limit's median, or ``None`` while a fixed limit is missing.

    The missing one may be the best.
    """
    rates = [rate(case, name, max_other) for name in case["runs"] if name not in (DEFAULT, NO_PAGE)]
    known = [each for each in rates if each is not None]
    return max(known) if known and len(known) == len(rates) else None


def share(case: dict[str, Any], max_other: float) -> float | None:
    """The default client's answers per second over the best fixed limit's.

    ``None`` if either is unknown.
    """
    own, best = rate(case, DEFAULT, max_other), best_fixed(case, max_other)
    return own / best if own is not None and best else None


def shortfalls(cases: list[dict[str, Any]], max_other: float) -> list[str]:
    """A sentence for each bar that the default client misses, or that could not be judged."""
    said = []
    for case in cases:
        own = rate(case, DEFAULT, max_other)
        for to, bar in case["bars"].items():
            against = best_fixed(case, max_other) if to == BEST_FIXED else rate(case, to, max_other)
            what = f"{case['case']}: the default client's share of {to}"
            if own is None or not against:
                said.append(f"{what} is not known: an arm was left out, or its windows were too noisy")
            elif own / against < bar:
                said.append(f"{what} is {own / against:.2f}, below {bar}")
    return said


def rows(case: dict[str, Any], max_other: float) -> list[list[str]]:
    best = best_fixed(case, max_other)
    made = []
    for name in case["runs"]:
        runs = kept(case, name, max_other)
        if not runs:
            made.append([case["case"], name, "too noisy", "", "", "", "0"])
            continue
        rates = [run["per_s"] for run in runs]
        made.append(
            [
                case["case"],
                name,
                f"{median(rates):.1f} ({spread(rates)})",
                f"{median(rates) / best:.2f}" if best else "",
                f"{median([run['mean_ms'] for run in runs]):.0f}",
                f"{median([run['limit'] for run in runs]):.0f}",
                f"{len(runs)} of {len(case['runs'][name])}",
            ]
        )
    return made


def markdown(data: dict[str, Any]) -> str:
    header = (
        "case",
        "limit",
        "answers/s, median (min to max)",
        "of the best fixed",
        "mean ms",
        "limit at the end",
        "kept",
    )
    computes_in = data.get("dtype", "auto")
    text = ["# Limits" if computes_in == "auto" else f"# Limits, in {computes_in}"]
    text.append(
        "The default client, whose limit finds itself, beside clients with fixed limits, on a real vLLM;"
        " windows interleaved. The default client has searched before its first window; its limit is shown as it was"
        " at the end of its windows. With max_tokens, answers are counted by the tokens that the server has"
        " generated, else by what callers got. Agents have a fresh client in each run, whose last half is the window."
    )
    text.append(table(header, [row for case in data["cases"] for row in rows(case, data["max_other"])]))
    searched = [case for case in data["cases"] if case["search"]]
    if searched:
        text.append("The default client's search, answers in each second (limit):")
    for case in searched:
        seconds = ", ".join(f"{count} ({limit})" for _, count, limit in case["search"])
        text.append(f"- {case['part']}, {case['case']}: {seconds}")
    for line in dict.fromkeys(case["machine"] for case in data["cases"]):
        text.append(line)
    return "\n\n".join(text)
