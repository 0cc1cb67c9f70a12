"""The measurements of a sweep, interleaved and repeated.

Rules:
- Every setting is measured once in a repetition. The order is drawn for the first repetition and
  turned round for the second, drawn anew for the third, and so on. So what changes slowly, such as
  a machine's speed, favours none of two settings each time.
- The budget is kept within one measurement.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from batchclient import ConfigError
from batchclient.bench.arrivals import check_numbers
from batchclient.bench.measurement import Measurement, Setting
from batchclient.bench.session import Run
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import STRATEGIES, has_first_tokens

__all__ = ["check_objectives", "order_of", "settings_of", "sweep_in"]


def settings_of(
    strategies: Sequence[str],
    *,
    concurrency: Sequence[int] = (),
    sizes: Sequence[int] = (32,),
    rates: Sequence[float] = (),
) -> list[Setting]:
    """Return the settings of a sweep: all strategies under all loads, lists in all sizes.

    Args:
        strategies: names of ``STRATEGIES``.
        concurrency: callers of closed loads; with ``rates`` one number at most, the limit.
        sizes: of lists.
        rates: of open loads, calls per second.

    Raises:
        ConfigError: a strategy is unknown, there is no load, or a number is none above 0.
    """
    check_numbers(whole=True, concurrency=concurrency, sizes=sizes)
    check_numbers(rates=rates)
    for strategy in strategies:
        if strategy not in STRATEGIES:
            raise ConfigError(f"strategies: no {strategy!r}; there are: {', '.join(STRATEGIES)}", field="strategies")
    if not (concurrency or rates):
        raise ConfigError("concurrency or rates: a load is needed", field="concurrency")
    if rates and len(concurrency) > 1:
        raise ConfigError("concurrency: one limit at most beside rates", field="concurrency")
    limit = concurrency[0] if rates and concurrency else None
    loads: list[tuple[int | None, float | None]] = (
        [(limit, rate) for rate in rates] if rates else [(each, None) for each in concurrency]
    )
    return [
        Setting(strategy, size, each, rate)
        for strategy in strategies
        for each, rate in loads
        for size in (sizes if strategy == "lists" else (None,))
        # A list longer than the limit cannot be sent at once.
        if size is None or each is None or size <= each
    ]


def check_objectives(slos: Sequence[Slo], strategies: Iterable[str], call: str) -> None:
    """Refuse an objective on a time that a strategy's answers do not have: no call would meet it.

    Args:
        slos: the objectives.
        strategies: names of ``STRATEGIES``.
        call: of the workload.

    Raises:
        ConfigError: a strategy has no first tokens.
    """
    for slo in slos:
        for strategy in strategies:
            if slo.measure != "latency" and not has_first_tokens(strategy, call):
                raise ConfigError(f"slo: {slo.text}: {strategy} of {call} tells no first tokens", field="slo")


def order_of(settings: Sequence[Setting], seed: int, repetition: int) -> list[Setting]:
    """Return the order of a repetition."""
    order = list(settings)
    random.Random(f"{seed}/order/{repetition // 2}").shuffle(order)  # noqa: S311
    return order[::-1] if repetition % 2 else order


async def sweep_in(run: Run, settings: Sequence[Setting], repeat: int = 3) -> list[Measurement]:
    """Measure settings; return what was measured within the budget.

    Args:
        run: the server.
        settings: to be measured.
        repeat: repetitions.

    Raises:
        BenchFailed: as ``Run.measure``.
    """
    for repetition in range(repeat):
        for setting in order_of(settings, run.session.seed, repetition):
            if await run.measure(setting, repetition) is None:
                return run.measurements
    return run.measurements
