"""Merge ``benchmarks/results`` into the documentation: tables between markers, pictures beside them.

    python benchmarks/report.py                    # writes docs/benchmarks.md, docs/laboratory.md, docs/images/benchmark_*
    python benchmarks/report.py --docs out/docs    # somewhere else

Text outside the markers is left as it is; a section without markers is added at the end. A result that was not measured is left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from _common import HERE, RESULTS, median, merged, section_text
from matplotlib.figure import Figure
from vllm_cpu import enough, ratio_values

mpl.use("Agg")

OURS, THEIRS, FLOOR = "#1b6ca8", "#c8743c", "#7a7a7a"
INTRODUCTION = """# Benchmarks

Ratios within one run carry over to like machines; absolute figures do not. Everything below was made by

    python benchmarks/overhead.py
    python benchmarks/drop_in.py
    python benchmarks/million.py
    python benchmarks/sync.py
    python benchmarks/vllm_cpu.py
    python benchmarks/strategies.py
    python benchmarks/length_grouping.py
    python benchmarks/limits_vllm.py
    python benchmarks/prefix.py
    python benchmarks/first_job.py
    python benchmarks/chat_vllm.py
    python benchmarks/embeddings_vllm.py --save
    python benchmarks/report.py
"""

Draw = Callable[[dict[str, Any], Path], None]


def colour(name: str) -> str:
    if name.startswith(("plain", "streamed", "throughput", "balanced")):
        return OURS
    return FLOOR if name.startswith(("floor", "harness")) else THEIRS


def saved(figure: Figure, path: Path) -> None:
    # Without the version of matplotlib in it, so that the same figures make the same file.
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})


def cpu_per_call(overhead: dict[str, Any], path: Path) -> None:
    arms = {name: arm for name, arm in overhead.get("loop", {}).items() if name != "harness"}
    if not arms:
        return
    ordered = sorted(arms, key=lambda name: -arms[name]["cpu_us"])
    figure = Figure(figsize=(8, 0.42 * len(ordered) + 1))
    axes = figure.add_subplot()
    values = [arms[name]["cpu_us"] for name in ordered]
    bars = axes.barh([arms[name]["label"] for name in ordered], values, color=[colour(name) for name in ordered])
    axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=3)
    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.set_xlabel("client CPU per call, µs (log scale)")
    axes.set_title("What a call costs the client")
    axes.spines[["top", "right"]].set_visible(False)
    saved(figure, path)


def list_sizes(overhead: dict[str, Any], path: Path) -> None:
    shown = ("plain", "plain_balanced", "streamed", "streamed_aiohttp")
    arms = {name: overhead["loop"][name] for name in shown if name in overhead.get("loop", {})}
    if not arms:
        return
    figure = Figure(figsize=(8, 1.7 * len(arms) + 0.6))
    for place, arm in enumerate(arms.values()):
        prompts: dict[int, int] = {}
        for run in arm["runs"]:
            for size, count in run["list_sizes"].items():
                prompts[int(size)] = prompts.get(int(size), 0) + int(size) * count
        axes = figure.add_subplot(len(arms), 1, place + 1)
        total = sum(prompts.values())
        axes.bar(list(prompts), [100 * count / total for count in prompts.values()], width=0.9, color=OURS)
        axes.set_xlim(0, 66)
        axes.set_ylabel("% of calls")
        axes.set_title(arm["label"], loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("prompts in the list a call travelled in (64 callers, limit 64)")
    figure.tight_layout()
    saved(figure, path)


def million_memory(million: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(8, 3))
    axes = figure.add_subplot()
    samples = million["samples"]
    axes.plot([sample["documents"] / 1e3 for sample in samples], [sample["rss_mib"] for sample in samples], color=OURS)
    axes.set_ylim(0, 1.2 * million["peak_mib"])
    axes.set_xlabel("thousand documents answered")
    axes.set_ylabel("resident MiB")
    axes.set_title("Memory of a map")
    axes.spines[["top", "right"]].set_visible(False)
    saved(figure, path)


def vllm_ratios(vllm: dict[str, Any], path: Path) -> None:
    figures = ("prompts/s", "p95 latency", "client CPU", "API server CPU")
    cells = [cell for cell in vllm.get("cells", []) if enough(cell)]
    if not cells:
        return
    figure = Figure(figsize=(9, 3.6))
    axes = figure.add_subplot()
    width = 0.8 / len(figures)
    for place, label in enumerate(figures):
        values = [median(ratio_values(cell, "throughput", label)) for cell in cells]
        at = [index + (place - (len(figures) - 1) / 2) * width for index in range(len(cells))]
        axes.bar(at, values, width=0.95 * width, label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(cells)), [f"{cell['tokens']} in\n{cell['max_tokens']} out" for cell in cells])
    axes.set_ylabel("BatchClient / AsyncOpenAI (log)")
    axes.set_title("On a real vLLM: ratio to AsyncOpenAI at its best")
    axes.legend(ncols=len(figures), frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axes.spines[["top", "right"]].set_visible(False)
    saved(figure, path)


SECTIONS: dict[str, dict[str, Draw]] = {
    "overhead": {"cpu_per_call.png": cpu_per_call, "list_sizes.png": list_sizes},
    "drop_in": {},
    "million": {"million_memory.png": million_memory},
    "sync": {},
    "vllm_cpu": {"vllm_ratios.png": vllm_ratios},
    "draws": {},
    "strategies": {},
    "length_grouping": {},
    "limits_vllm": {},
    "prefix": {},
    "first_job": {},
    "chat_vllm": {},
    "embeddings_vllm": {},
}
PAGES = {
    "benchmarks.md": (
        "overhead",
        "drop_in",
        "million",
        "sync",
        "vllm_cpu",
        "strategies",
        "length_grouping",
        "limits_vllm",
        "prefix",
        "first_job",
        "chat_vllm",
        "embeddings_vllm",
    ),
    "laboratory.md": ("draws",),
}
INTRODUCTIONS = {"benchmarks.md": INTRODUCTION, "laboratory.md": "# The laboratory\n"}


def section(name: str, images: Path) -> str | None:
    """The Markdown of one result with its pictures, or ``None`` if it was not measured."""
    source = RESULTS / f"{name}.json"
    if not source.exists():
        return None
    data = json.loads(source.read_text())
    text = section_text(name, RESULTS)
    pictures = []
    for picture, draw in SECTIONS[name].items():
        path = images / f"benchmark_{picture}"
        path.unlink(missing_ok=True)
        draw(data, path)
        if path.exists():
            pictures.append(f"![{Path(picture).stem.replace('_', ' ')}](images/{path.name})")
    return "\n\n".join([text, *pictures])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs", help="folder of the pages and of images/")
    docs: Path = parser.parse_args().docs
    (docs / "images").mkdir(parents=True, exist_ok=True)
    for page_name, names in PAGES.items():
        page_path = docs / page_name
        page = page_path.read_text() if page_path.exists() else INTRODUCTIONS[page_name]
        for name in names:
            text = section(name, docs / "images")
            if text is None:
                print(f"{name}: not measured")
                continue
            page = merged(page, name, text)
            print(f"{name}: merged")
        page_path.write_text(page)


if __name__ == "__main__":
    main()
