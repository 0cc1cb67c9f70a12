"""A server's profile from what a client saw: when rows were sent, for how long, beside how many.

Rules:
- A row takes as many steps of the engine as it has tokens. They cost as ``profiles`` says; what the
  KV cache costs is in ``sequence_s``, since it grows with the sequences.
- Where all rows had one load, a step's cost and a sequence's cannot be told apart: there is no fit.
- The numbers are not unique. What they tell of loads between those seen is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import mul
from statistics import median, stdev
from typing import NamedTuple

from batchclient.simulator.profiles import Profile

__all__ = ["LEAST_ROWS", "MOST_ROWS", "Call", "Fit", "NotSeen", "fit"]

LEAST_ROWS, MOST_ROWS = 50, 2000
"""Rows that a fit needs, and that it takes: the first ones."""
_LEAST_RANGE = 1.5
"""The high loads over the low ones, at least."""
_LEAST_SHARE = 0.8
"""If the rows are less of what was in flight, there were other calls."""
_SENT, _PREFILLED, _ENDED = range(3)
_KNEES, _PASSES, _ROUNDS, _BLOCKS, _DRAWS, _CLOSE = 24, 3, 300, 20, 40, 4


class NotSeen(ValueError):
    """The rows do not show what is asked; the message says why."""


class Call(NamedTuple):
    """An answered row, as a journal's record has it; ``is_cut``: the answer ended at a bound."""

    sent: float
    seconds: float
    in_flight: int
    prompt_bytes: int
    prompt_tokens: int
    output_tokens: int
    is_cut: bool = False


@dataclass(frozen=True)
class Fit:
    """What rows show of a server.

    Args:
        profile: with no bounds of its own: nothing is known beyond ``most``.
        away_s: how long a row is under way beside the engine: client, network, API server.
        least, most: sequences that a server had in flight.
        unsteady: how much the fifths of the rows differ from what is told of them, as a relative
            standard deviation.
        costs: of the fit, and of fits to redrawn rows: the knee, and the others as in ``_terms``.
    """

    profile: Profile
    away_s: float
    least: float
    most: int
    unsteady: float
    costs: Sequence[tuple[float, Sequence[float]]]

    def spread(self, load: float, prompt_tokens: float, output_tokens: float) -> float:
        """Return the relative standard error of what such rows cost with so many in flight."""
        best, *drawn = (
            sum(map(mul, costs, _terms(output_tokens, max(1.0, load / knee), load, load * prompt_tokens)))
            for knee, costs in self.costs
        )
        return float(stdev(drawn, best) / best)


def fit(calls: Sequence[Call], *, seed: int = 0) -> Fit:
    """Find the costs by which the rows took what they took, with the least squares of relative errors.

    Args:
        calls: of one model on servers that are alike, at any times.
        seed: of the redrawn rows.

    Raises:
        NotSeen: too few rows, one load only, or other calls beside them.
    """
    calls = sorted(calls)[:MOST_ROWS]
    if len(calls) < LEAST_ROWS:
        raise NotSeen(f"{len(calls)} of its rows say when they were sent, and {LEAST_ROWS} are needed")
    share = median(load / call.in_flight for (load, *_), call in zip(_beside(calls), calls, strict=True))
    if share < _LEAST_SHARE:
        raise NotSeen("other calls were under way beside its rows, and what those cost is not known")
    servers = max(1, round(share))
    loads = sorted(load / servers for load, *_ in _beside(calls))
    low, high = loads[len(loads) // 20], loads[-1 - len(loads) // 20]
    if high < _LEAST_RANGE * low:
        raise NotSeen(f"its rows all had some {high:.0f} others beside them, and one load tells nothing of another")
    knees = [math.inf, *(low * (high / low) ** (place / _KNEES) for place in range(_KNEES))]
    seconds = [call.seconds for call in calls]
    weights = [1 / each for each in seconds]
    pace: Callable[[float], float] = lambda _: 1.0  # noqa: E731
    prefill_token_s = 0.0
    for _ in range(_PASSES):
        beside = _beside(calls, servers, knees, pace, prefill_token_s)
        of_knees = [
            [
                _terms(call.output_tokens, of[place], load, prompts)
                for call, (load, prompts, *of) in zip(calls, beside, strict=True)
            ]
            for place in range(len(knees))
        ]
        found = sorted((*_least_squares(terms, seconds, weights), place) for place, terms in enumerate(of_knees))
        _, best, place = found[0]
        # Relative to what is told of a row, not to what it took by chance.
        weights = [1 / sum(map(mul, best, terms)) for terms in of_knees[place]]
        pace, prefill_token_s = partial(_pace, knees[place], best[0], best[1]), best[2]
    fifth = -(-len(calls) // 5)
    fifths = [slice(start, start + fifth) for start in range(0, len(calls), fifth)]
    unsteady = stdev(sum(seconds[each]) / sum(1 / weight for weight in weights[each]) for each in fifths)
    costs = [(knees[place], best)]
    rng, size = random.Random(seed), -(-len(calls) // _BLOCKS)  # noqa: S311
    blocks = [range(start, min(start + size, len(calls))) for start in range(0, len(calls), size)]
    for _ in range(_DRAWS):
        chosen = [each for block in rng.choices(blocks, k=len(blocks)) for each in block]
        drawn = [[column[each] for each in chosen] for column in (seconds, weights)]
        of_drawn = (
            (*_least_squares([of_knees[knee][each] for each in chosen], *drawn), knees[knee])
            for *_, knee in found[:_CLOSE]
        )
        _, redrawn, knee = min(of_drawn)
        costs.append((knee, redrawn))
    step_s, sequence_s, _, away_s = best
    profile = Profile(
        "fitted",
        "as a journal saw it",
        step_s=step_s,
        compute_s=step_s / knees[place],
        sequence_s=sequence_s,
        prefill_token_s=prefill_token_s,
        step_tokens=1_000_000,
        max_num_seqs=100_000,
        kv_tokens=1_000_000_000,
    )
    most = sorted(call.in_flight for call in calls)[-1 - len(calls) // 20]
    return Fit(profile, away_s, low, most, unsteady, costs)


def _terms(tokens: float, beyond: float, load: float, prompt_tokens: float) -> tuple[float, ...]:
    """What a step, a sequence, a token of a prompt and the way there are multiplied with for a row.

    ``beyond`` is the load over the knee, or 1; ``prompt_tokens`` those that came during its life.
    """
    return tokens * beyond, tokens * load, prompt_tokens, 1.0


def _pace(knee: float, step_s: float, sequence_s: float, load: float) -> float:
    """Steps a second."""
    return 1 / max(step_s * max(1.0, load / knee) + sequence_s * load, 1e-9)


def _beside(
    calls: Sequence[Call],
    servers: int = 1,
    knees: Sequence[float] = (),
    pace: Callable[[float], float] = lambda _: 1.0,
    prefill_token_s: float = 0.0,
) -> list[tuple[float, ...]]:
    """Return of each row the mean load, the tokens that were prefilled meanwhile, and ``beyond``.

    Means are over steps: ``pace`` tells how many there are in a second with a load. Of prompts that
    come together the later ones wait for the others.
    """
    changes = [(call.sent, _SENT, place) for place, call in enumerate(calls)]
    changes += [(call.sent + call.seconds, _ENDED, place) for place, call in enumerate(calls)]
    free_at = 0.0
    for place, call in enumerate(calls):
        free_at = max(free_at, call.sent) + call.prompt_tokens / servers * prefill_token_s
        changes.append((min(free_at, call.sent + call.seconds), _PREFILLED, place))
    at, in_flight, prompts = calls[0].sent, 0, 0.0
    areas = [0.0] * (len(knees) + 2)
    before: dict[int, tuple[float, Sequence[float]]] = {}
    found: dict[int, tuple[float, ...]] = {}
    for now, together in groupby(sorted(changes), lambda change: change[0]):
        load, came = in_flight / servers, prompts
        steps = (now - at) * pace(load)
        heights = [1.0, load, *(max(1.0, load / knee) for knee in knees)]
        areas = [area + steps * height for area, height in zip(areas, heights, strict=True)]
        at = now
        for _, kind, place in together:
            if kind == _SENT:
                in_flight += 1
                before[place] = came, areas
            elif kind == _PREFILLED:
                prompts += calls[place].prompt_tokens / servers
            else:
                in_flight -= 1
                came_before, then = before.pop(place)
                whole, load, *beyond = (area - each for area, each in zip(areas, then, strict=True))
                found[place] = load / whole, prompts - came_before, *(each / whole for each in beyond)
    return [found[place] for place in range(len(calls))]


def _least_squares(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], weights: Sequence[float]
) -> tuple[float, list[float]]:
    """Return the squares that are left, and the costs: from 0 on, the last up to the quickest row."""
    columns = [[*map(mul, column, weights)] for column in [*zip(*rows, strict=True), seconds]]
    *products, (*moments, whole) = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    costs, highest = [0.0] * 4, [math.inf, math.inf, math.inf, min(seconds)]
    for _ in range(_ROUNDS):
        for i, product in enumerate(products):
            nearer = costs[i] + (moments[i] - sum(map(mul, product, costs))) / product[i]
            costs[i] = min(max(0.0, nearer), highest[i])
    of_costs = sum(
        cost * (sum(map(mul, product, costs)) - 2 * moment)
        for cost, product, moment in zip(costs, products, moments, strict=True)
    )
    return whole + of_costs, costs
