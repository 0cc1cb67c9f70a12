"""Measurements of a server: the limit, the batch size and the client for a load and an objective.

``find`` searches for the limit or the rate that keeps an objective. ``sweep`` measures settings,
interleaved and repeated, so that a slow drift of the machine favours none of them. For example::

    result = await find("http://localhost:8000/v1", Workload(), Slo("p95<400ms"), over="limit")
    result.recommended.limit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from batchclient.bench.arrivals import Closed, Poisson, check_numbers
from batchclient.bench.find import Recommendation, SearchResult, find_in
from batchclient.bench.generator import Times
from batchclient.bench.intervals import Interval
from batchclient.bench.measurement import Figures, Measurement, Setting
from batchclient.bench.session import BenchFailed, Run, begin
from batchclient.bench.slo import Slo
from batchclient.bench.sweep import check_objectives, settings_of, sweep_in
from batchclient.bench.workload import Workload
from batchclient.transport import Transport

__all__ = [
    "BenchFailed",
    "Closed",
    "Figures",
    "Interval",
    "Measurement",
    "Poisson",
    "Recommendation",
    "SearchResult",
    "Setting",
    "Slo",
    "Times",
    "Workload",
    "find",
    "sweep",
]


async def find(
    base_url: str,
    workload: Workload | None = None,
    *slos: Slo,
    over: Literal["limit", "rate"] = "limit",
    times: Times | None = None,
    model: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    most: float | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    on_measurement: Callable[[Measurement], object] = lambda _: None,
    transport: Callable[[str, Mapping[str, str]], Transport] | None = None,
) -> SearchResult:
    """Search for the limit or the arrival rate that keeps the objectives, with calls to the server.

    Args:
        base_url, model, api_key, headers: as for ``BatchClient``.
        transport: as its ``http``, in place of HTTP.
        workload: the calls; ``Workload()`` by default.
        slos: the objectives. Without one the search is for the knee: the limit above which the
            throughput gains less than 10 % from four times as many calls in flight.
        over: ``"limit"``: calls in flight; ``"rate"``: arrivals per second.
        times: of each measurement.
        most: the greatest value to try.
        budget_s: no measurement is begun that would end later, seconds.
        seed: of the arrivals.
        on_measurement: given each measurement.

    Raises:
        ConfigError: an argument is wrong.
        BenchFailed: no call of the first measurement was answered, or of two measurements one after
            the other.
        BatchClientError: the very first call failed.
    """
    check_numbers(budget_s=() if budget_s is None else [budget_s])
    workload = workload or Workload()
    check_objectives(slos, ["fixed" if over == "limit" else "adaptive"], workload.call)
    session = await begin(
        base_url,
        workload,
        times or Times(),
        slos,
        model=model,
        api_key=api_key,
        headers=headers,
        seed=seed,
        budget_s=budget_s,
        transport=transport,
    )
    return await find_in(Run(session, budget_s, on_measurement), over, most=most)


async def sweep(
    base_url: str,
    workload: Workload | None = None,
    *slos: Slo,
    strategies: Sequence[str] = ("adaptive", "async-openai"),
    concurrency: Sequence[int] = (),
    sizes: Sequence[int] = (32,),
    rates: Sequence[float] = (),
    repeat: int = 3,
    times: Times | None = None,
    model: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    on_measurement: Callable[[Measurement], object] = lambda _: None,
    transport: Callable[[str, Mapping[str, str]], Transport] | None = None,
) -> list[Measurement]:
    """Measure strategies under loads, interleaved and repeated.

    Args:
        base_url, model, api_key, headers: as for ``BatchClient``.
        transport: as its ``http``, in place of HTTP.
        workload: the calls; ``Workload()`` by default.
        slos: the objectives.
        strategies: ``"adaptive"``, ``"fixed"``, ``"lists"``, ``"singles"``, ``"async-openai"``.
        concurrency: calls in flight, of closed loads; beside ``rates`` one number, the limit.
        sizes: prompts per request of lists.
        rates: arrivals per second, of open loads.
        repeat: repetitions of each.
        times: of each measurement.
        budget_s: no measurement is begun that would end later, seconds.
        seed: of arrivals and orders.
        on_measurement: given each measurement.

    Raises:
        ConfigError, BenchFailed, BatchClientError: as for ``find``.
    """
    settings = settings_of(strategies, concurrency=concurrency, sizes=sizes, rates=rates)
    workload = workload or Workload()
    check_objectives(slos, strategies, workload.call)
    check_numbers(whole=True, repeat=[repeat])
    check_numbers(budget_s=() if budget_s is None else [budget_s])
    session = await begin(
        base_url,
        workload,
        times or Times(),
        slos,
        model=model,
        api_key=api_key,
        headers=headers,
        seed=seed,
        budget_s=budget_s,
        transport=transport,
    )
    return await sweep_in(Run(session, budget_s, on_measurement), settings, repeat)
