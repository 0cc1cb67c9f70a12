"""Every number of a setting is finite, or refused: a walk over the public settings and arguments."""

import asyncio
import inspect
import math
import re

import pytest

import batchclient
from batchclient import BatchClient, bench, errors, testing, types
from batchclient.integrations.httpx import BatchTransport
from tests.shell.scripted import ScriptedTransport, make_client

ANY = [math.nan, math.inf, -math.inf, "3", True]
WHOLE = [*ANY, 2.5]
CHAT = [{"role": "user", "content": "p"}]
GIVEN = {
    "BatchClient": ["http://server/v1"],
    "SyncBatchClient": ["http://server/v1"],
    "Journal": ["rows.journal"],
    "Poisson": [1.0],
    "Closed": [1],
    "Server": ["http://server/v1"],
    "chat": [CHAT],
    "stream_chat": [CHAT],
    "rerank": ["q", ["d"]],
    "score": ["q", "d"],
    "batch_map": [["d"], "{}"],
    "stream_map": [["d"], "{}"],
    "retune": [],
    "view": [],
}
STATISTICS = {"Adjustment", "EndpointStatistics", "Histogram", "LaneStatistics", "LengthStatistics", "Statistics"}
RESULTS = {
    *errors.__all__,
    *types.__all__,
    *STATISTICS,
    "Decision",
    "MapProgress",
    "MapResult",
    "RowCall",
    "RowStream",
    "SyncRowStream",
    "ServerInfo",
    "ServerLoad",
    "Stream",
}
BENCH = [bench.Closed, bench.Poisson, bench.Times, bench.Workload]


def holders():
    """The public classes whose arguments are settings."""
    made = [getattr(batchclient, name) for name in batchclient.__all__ if name not in RESULTS]
    made += [*BENCH, BatchTransport, testing.Answer]
    return [each for each in made if inspect.isclass(each)]


def numbers(function):
    """The parameters that are numbers, with what they must refuse."""
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = set(re.findall(r"\w+", str(parameter.annotation)))
        if (
            kinds & {"int", "float"}
            and not kinds & {"Callable", "Sequence", "tuple"}
            and name != "seed"
            and name[0] != "_"
        ):
            yield name, ANY if "float" in kinds else WHOLE


PATIENCE = ("max_wait_s", "outage_patience_s", "wait_for_server_s")
"""Of these infinity is no bound."""


def given_with(function, name, value):
    """Arguments of which one is wrong, and the others are as they may be."""
    arguments = dict(inspect.signature(function).bind_partial(*GIVEN.get(function.__name__, ())).arguments)
    return {**arguments, name: {"a": value} if name == "tenant_weights" else value}


def refused_by(error, name):
    return isinstance(error, errors.ConfigError) and error.field is not None and error.field.split(".")[-1] == name


def test_settings_refuse_what_is_no_finite_number_and_name_it():
    seen, taken = 0, []
    for holder in holders():
        for name, wrong in numbers(holder):
            for value in wrong:
                if name in PATIENCE and value == float("inf"):
                    continue
                seen += 1
                error = None
                try:
                    holder(**given_with(holder, name, value))
                except Exception as raised:
                    error = raised
                if not refused_by(error, name):
                    taken.append((holder.__name__, name, value, error))
    assert not taken
    assert seen > 200, "the walk has found them"


def test_calls_maps_and_changes_refuse_what_is_no_finite_number_and_name_it():
    async def taken():
        async with make_client(ScriptedTransport()) as client:
            for method, function in inspect.getmembers(BatchClient, inspect.isfunction):
                if method[0] == "_":
                    continue
                for name, wrong in numbers(function):
                    GIVEN.setdefault(method, ["p"])
                    arguments = given_with(getattr(client, method), name, None)
                    for value in wrong:
                        error = None
                        try:
                            result = getattr(client, method)(**{**arguments, name: value})
                            await (result if inspect.isawaitable(result) else anext(aiter(result)))
                        except Exception as raised:
                            error = raised
                        if not refused_by(error, name):
                            yield method, name, value, error

    async def main():
        return [each async for each in taken()]

    assert asyncio.run(main()) == []


def test_a_measurement_refuses_them_too():
    url = "http://server/v1"
    for name, wrong in {"sizes": WHOLE, "concurrency": WHOLE, "rates": ANY, "repeat": WHOLE, "budget_s": ANY}.items():
        for value in wrong:
            several = name in ("sizes", "concurrency", "rates")
            with pytest.raises(errors.ConfigError) as caught:
                asyncio.run(bench.sweep(url, **{"concurrency": [1]} | {name: [value] if several else value}))
            assert refused_by(caught.value, name)
    with pytest.raises(errors.ConfigError, match="budget_s"):
        asyncio.run(bench.find(url, budget_s=math.nan))
