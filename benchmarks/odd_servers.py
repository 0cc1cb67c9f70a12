"""Many calls against servers that bear less, refuse or go away, and do not say so before.

    python benchmarks/odd_servers.py  # all rows of both pages, about ninety minutes
    python benchmarks/odd_servers.py --rows queue,serial --arms default --runs 1 --calls 300
    PYTHONPATH=../before/src python benchmarks/odd_servers.py --rows queue  # another checkout

The server is the simulator with the profile gpu, whose answers have 54 tokens in the mean. Before
it stands a proxy with the server's rules (``_odd_proxy.py``). Client, proxy and simulator have a
process each. Measured is the time from the first call to the last answer of a fresh client. The
arms (``_odd_clients.py``):

- ``default`` and ``throughput``: the client as it comes, and with that preset.
- ``openai``: ``AsyncOpenAI`` with 16, 64 or 256 calls in flight, and its own retries.
- ``raw``: ``httpx`` with lists of a fixed size, so many at once.

Two pages of results:

- ``odd_servers``: servers that bear less. A list of ``raw`` that was refused is sent again after
  what the server asked for, else after a random pause that doubles up to a second, for ever.
- ``odd_manners``: servers that refuse, rest, limp or go away in a manner of their own. The others
  are what a careful user writes: ``openai`` retries five times; ``raw`` tries five times whatever
  but 400, 413 and 422 went wrong, after ``Retry-After`` or a pause of half a second that doubles up
  to 8 s. A call that the server always refuses counts for nobody. A rival that loses more than a
  hundredth of the calls is no reference.

The settings of ``openai`` and ``raw`` are tried in the first run. The best one goes on: fewest
failed calls, of which a hundredth do not matter, then most calls/s. *Refused* is the share of
requests that were refused, or whose connection was closed. *Rests broken* are requests that came
before the seconds of a ``Retry-After`` were over, and more than 0.1 s after it was said.

Options that leave something of a page out write no file of it unless ``--name`` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import gc
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the guises of ``tests``

from _common import HERE, machine, median, provenance, table, write_results
from _odd_clients import Call, Client, Work, careful, openai_settings, ours, raw_settings, untiring
from _odd_proxy import MODEL, Entry, LoggedProcess, Rules

from batchclient.simulator import EmbeddedServer

CALLS = 900
MAX_TOKENS, LENGTHS = 128, "lognormal:56:0.5"
"""Means 54 tokens, since a few answers are cut."""
PATIENCE_S = 300.0
LATER_S = 2.0
REACTION_S, EARLY_S = 0.1, 0.02
"""A request may be on its way when a refusal is; a clock may be a little early."""
REFUSED_MODEL = "refused"
LONGEST = 2_000
LOST_AT_MOST = 0.01
"""Of a rival's calls, else it is no reference."""


@dataclass(frozen=True, slots=True)
class Server:
    """A simulator behind a proxy, or several with the same rules.

    Args:
        speeds: of each replica, as factors on the profile's.
        sequences: that a replica runs at once.
        calls: that the server answers.
        always_refused: further calls, of which this many are of the refused model or too long.
        per_s: calls that a service gets a second; all at once if not given.
        script: a server of ours in the place of simulator and proxy.
    """

    label: str
    rules: Rules = field(default_factory=Rules)
    sequences: int = 96
    speeds: tuple[float, ...] = (1.0,)
    calls: int = CALLS
    max_tokens: int = MAX_TOKENS
    guise: str = "vllm"
    faults: tuple[str, ...] = ()
    always_refused: int = 0
    per_s: float | None = None
    is_map: bool = False
    is_chat: bool = False
    patience_s: float = PATIENCE_S
    script: Path | None = None

    def work(self, calls: int) -> Work:
        start = random.getrandbits(48)
        prompts = [f"{start + number:016x} please summarise this document in a line" for number in range(calls)]
        made = [Call(prompt, at_s=number / self.per_s if self.per_s else 0.0) for number, prompt in enumerate(prompts)]
        for number in range(self.always_refused * calls // self.calls):
            if self.rules.refused_model:
                call = Call(f"refused {number}", model=REFUSED_MODEL, counts=False)
            else:
                call = Call(f"refused {number} " + "x" * LONGEST, counts=False)
            made.insert(random.randrange(len(made)), call)
        return Work(made, self.max_tokens, self.patience_s, self.is_map, self.is_chat)


LESS = {
    "sequences": Server("96 sequences, more are 429", Rules(sequences=96)),
    "queue": Server("64 slots, 503 when 32 wait", Rules(slots=64, waiting=32, status=503), sequences=64),
    "requests": Server("16 requests at a time, more are 429", Rules(requests=16)),
    "rests": Server("the same with `Retry-After: 2`", Rules(requests=16, retry_after_s=2), calls=3000),
    "rate": Server("20 requests a second, more are 503", Rules(per_s=20, status=503)),
    "connections": Server("32 connections, more are closed", Rules(connections=32)),
    "stall": Server("no answer from second 2 to 14", Rules(stall_s=(2.0, 14.0))),
    "replicas": Server("two replicas, one four times slower", speeds=(1.0, 0.25)),
}

stranger = partial(Server, sequences=256, guise="tests.guises:OPENAI", patience_s=120.0)
behind_a_proxy = partial(Server, sequences=256, calls=1500, patience_s=180.0)

MANNERS = {
    "model": stranger(
        "one of two models is always 429: 30 calls beside 3,000",
        Rules(refused_model=REFUSED_MODEL),
        calls=3000,
        always_refused=30,
        max_tokens=16,
    ),
    "own": stranger(
        '429 "Request too large" for one call in a hundred', Rules(longest=LONGEST), calls=1800, always_refused=18
    ),
    "rest": stranger(
        "20 chats a second for 40 s; at second 5 one is 429 with `Retry-After: 10`",
        Rules(rest=(5.0, 10)),
        calls=800,
        per_s=20.0,
        is_chat=True,
    ),
    "serial": stranger("a list's prompts are served one after another", faults=("serial",)),
    "bucket": stranger(
        "60 calls' tokens a second, told by `x-ratelimit-*` and `retry-after-ms`", Rules(tokens_per_s=8_500)
    ),
    "dead": stranger("a router with a dead replica: 502 for 30 %", Rules(dead=0.3)),
    "restart": behind_a_proxy("a restart from second 2 to 6", Rules(down_s=(2.0, 6.0))),
    "away": behind_a_proxy("502 from second 2 to 7, a map", Rules(away=(2.0, 7.0, 502)), is_map=True),
    "absent": behind_a_proxy("404 from second 2 to 5, a map", Rules(away=(2.0, 5.0, 404)), is_map=True),
    "events": stranger(
        "an event per token: 3 ms a request, 0.05 ms an event", calls=3000, script=HERE / "_odd_events.py"
    ),
}


ARMS: dict[str, dict[str, Client]] = {
    "default": {"": ours},
    "throughput": {"": partial(ours, preset="throughput")},
    "openai": openai_settings(),
    "raw": raw_settings(untiring, [(1, 64), (1, 96), (4, 16), (8, 32), (16, 16)]),
}
"""Each client by its settings; the best one counts."""
CAREFUL: dict[str, dict[str, Client]] = {
    "default": {"": ours},
    "openai": openai_settings(max_retries=5),
    "raw": raw_settings(careful, [(1, 64), (1, 256), (16, 16)]),
}
SINGLY = CAREFUL | {"raw": raw_settings(careful, [(1, 64), (1, 256)])}
"""Of chats."""


@dataclass(frozen=True, slots=True)
class Page:
    servers: dict[str, Server]
    arms: dict[str, dict[str, Client]]

    def arms_for(self, server: Server) -> dict[str, dict[str, Client]]:
        return SINGLY if server.is_chat else self.arms


PAGES = {"odd_servers": Page(LESS, ARMS), "odd_manners": Page(MANNERS, CAREFUL)}
ROWS = [row for page in PAGES.values() for row in page.servers]


# --- measuring ---


@contextlib.contextmanager
def served(server: Server) -> Iterator[list[LoggedProcess]]:
    if server.script is not None:
        yield [LoggedProcess(server.script)]
        return
    with contextlib.ExitStack() as stack:
        simulators = [
            EmbeddedServer(
                "gpu",
                process=True,
                model=MODEL,
                speed=speed,
                max_num_seqs=server.sequences,
                output_lengths=LENGTHS,
                guise=server.guise,
                faults=server.faults,
            )
            for speed in server.speeds
        ]
        yield [LoggedProcess.proxy(stack.enter_context(each).port, server.rules) for each in simulators]


def run(server: Server, client: Client, calls: int) -> dict[str, Any]:
    """A fresh client on fresh servers."""
    work = server.work(calls)
    gc.collect()
    with served(server) as processes:
        outcome = asyncio.run(client([process.base_url for process in processes], work))
        log = sorted(entry for process in processes for entry in process.end())
    taken = [sequences for _, sequences, status in log if status == 200]
    return asdict(outcome) | {
        "calls_per_s": (calls - outcome.failed) / outcome.took_s,
        "requests": len(log),
        "refused": refused(log),
        "refused_later": refused([entry for entry in log if entry[0] >= log[0][0] + LATER_S]),
        "rests_broken": rests_broken(log, server.rules.retry_after_s),
        "mean_list": sum(taken) / max(1, len(taken)),
    }


def refused(log: Sequence[Entry]) -> float:
    return sum(status != 200 for _, _, status in log) / max(1, len(log))


def rests_broken(log: Sequence[Entry], rest_s: float | None) -> int:
    """Requests within the rest that an earlier refusal asked for."""
    said = [at for at, _, status in log if status != 200]
    broken = 0
    for at, _, _ in log if rest_s else ():
        heard = bisect.bisect_right(said, at - REACTION_S)
        broken += heard > 0 and at < said[heard - 1] + (rest_s or 0) - EARLY_S
    return broken


def measure(server: Server, name: str, settings: dict[str, Client], runs: int, calls: int) -> dict[str, Any]:
    """All settings of an arm once, and the best one ``runs`` times."""
    tried: dict[str, list[dict[str, Any]]] = {}
    for setting, client in settings.items():
        tried[setting] = [run(server, client, calls)]
        print(f"  {name:10} {setting:15} {shown(tried[setting][0])}", flush=True)
    best = min(tried, key=lambda setting: rank(tried[setting][0], calls))
    for _ in range(runs - 1):
        tried[best].append(run(server, settings[best], calls))
        print(f"  {name:10} {best:15} {shown(tried[best][-1])}", flush=True)
    return {"setting": best, "runs": tried[best], "tried": {each: first for each, (first, *_) in tried.items()}}


def rank(run: dict[str, Any], calls: int) -> tuple[int, float]:
    """Least is best."""
    return (run["failed"] if run["failed"] > LOST_AT_MOST * calls else 0, -run["calls_per_s"])


def shown(run: dict[str, Any]) -> str:
    return (
        f"{run['calls_per_s']:6.1f} calls/s, {run['took_s']:.1f} s, {run['failed']} failed, {run['requests']} requests,"
        f" refused {run['refused']:.0%}, later {run['refused_later']:.0%}, rests broken {run['rests_broken']},"
        f" mean list {run['mean_list']:.1f}"
    )


# --- the report ---


def servers_that_bear_less(cases: Sequence[dict[str, Any]]) -> list[str]:
    header = (
        "server",
        "default",
        "`throughput`",
        "`AsyncOpenAI`, best",
        "raw, best",
        "default over raw",
        "refused after 2 s: default, `throughput`",
    )
    rows, parts = [], []
    for case in cases:
        arms = case["arms"]
        if arms.keys() != ARMS.keys():
            continue
        later = [median([run["refused_later"] for run in arms[name]["runs"]]) for name in ("default", "throughput")]
        share = f"{speed(arms['default']) / speed(arms['raw']):.2f}"
        rows.append(
            [case["label"], *map(calls_per_s, arms.values()), share, ", ".join(f"{each:.0%}" for each in later)]
        )
        if case["rests"]:
            broken = [sum(run["rests_broken"] for run in arms[name]["runs"]) for name in ("default", "throughput")]
            kept = "A `Retry-After` was broken by the default client {} times, with `throughput` {} times, in all runs."
            parts.append(kept.format(*broken))
    return [table(header, rows), *parts]


def manners(cases: Sequence[dict[str, Any]]) -> list[str]:
    header = ("server", "calls", "default", "`AsyncOpenAI`, best", "raw, best", "default over the best of both")
    rows, parts = [], []
    for case in cases:
        arms = case["arms"]
        shares = [speed(arms["default"]) / speed(arms[name]) for name in ("openai", "raw") if is_reference(case, name)]
        shown_arms = [calls_per_s(arms[name]) if name in arms else "" for name in CAREFUL]
        rows.append([case["label"], f"{case['calls']:,}", *shown_arms, f"{min(shares):.2f}" if shares else ""])
        if case["per_s"]:
            waits = "; ".join(f"{name} {latency(arm)}" for name, arm in arms.items())
            parts.append(f"Latency at {case['per_s']:g}/s, mean and 95th percentile, s: {waits}.")
    return [table(header, rows), *parts]


def latency(arm: dict[str, Any]) -> str:
    return ", ".join(f"{median([run[each] for run in arm['runs']]):.1f}" for each in ("mean_s", "p95_s"))


def is_reference(case: dict[str, Any], name: str) -> bool:
    """Whether both arms were run, and the rival answered its calls."""
    arms = case["arms"]
    if "default" not in arms or name not in arms:
        return False
    return all(run["failed"] <= LOST_AT_MOST * case["calls"] for run in arms[name]["runs"])


TABLES = {"odd_servers": servers_that_bear_less, "odd_manners": manners}


def markdown(page: str, data: dict[str, Any]) -> str:
    return "\n\n".join([*TABLES[page](list(data["servers"].values())), provenance(data["machine"])])


def speed(arm: dict[str, Any]) -> float:
    return median([run["calls_per_s"] for run in arm["runs"]])


def calls_per_s(arm: dict[str, Any]) -> str:
    """Return the median, the setting, and how many calls failed."""
    failed = sum(run["failed"] for run in arm["runs"])
    beside = [arm["setting"]] if arm["setting"] else []
    beside += [f"**{failed} failed**"] if failed else []
    value = f"{speed(arm):.0f}"
    return f"{value} ({', '.join(beside)})" if beside else value


def chosen(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, known in (("--rows", ROWS), ("--arms", list(ARMS))):
        parser.add_argument(option, type=partial(chosen, known=known), default=known, help=f"of {', '.join(known)}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--calls", type=int, help="of each row; each row's own number if not given")
    parser.add_argument("--name", help="file name of the results of one page; the page's if nothing is left out")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    is_whole = options.arms == list(ARMS) and options.runs >= 3 and options.calls is None
    pages = {name: page for name, page in PAGES.items() if set(page.servers) & set(options.rows)}
    if options.name and len(pages) > 1:
        raise SystemExit(f"--name names one file, and the rows are of {' and '.join(pages)}: choose --rows of one page")
    for page_name, page in pages.items():
        keys = [key for key in options.rows if key in page.servers]
        name = options.name or (page_name if is_whole and set(keys) == set(page.servers) else None)
        data: dict[str, Any] = {"machine": machine(), "servers": {}}
        for key in keys:
            server = page.servers[key]
            calls = options.calls or server.calls
            print(f"{server.label}, {calls:,} calls", flush=True)
            arms = {arm: settings for arm, settings in page.arms_for(server).items() if arm in options.arms}
            measured = {arm: measure(server, arm, settings, options.runs, calls) for arm, settings in arms.items()}
            rests = server.rules.retry_after_s is not None
            data["servers"][key] = {
                "label": server.label,
                "calls": calls,
                "rests": rests,
                "per_s": server.per_s,
                "arms": measured,
            }
            if name:
                write_results(name, data, markdown(page_name, data))  # what is done stays, should a later one fail
        print(markdown(page_name, data))


if __name__ == "__main__":
    main()
