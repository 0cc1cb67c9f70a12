"""The last line of an answer: the constructor, or that the defaults do."""

import pytest

from batchclient.bench import Setting, Slo
from batchclient.bench.answer import lines_of_search, lines_of_sweep
from batchclient.bench.find import find_in
from batchclient.bench.session import Run
from batchclient.bench.sweep import settings_of, sweep_in
from batchclient.simulator import SimulatedServer
from tests.guises import GUISES


@pytest.mark.parametrize(
    ("strategy", "suggested"),
    [
        ("adaptive", "BatchClient(…): the defaults do"),
        ("fixed", "BatchClient(…, limit=4)"),
        ("singles", "BatchClient(…, limit=4, batching=Batching(max_size=1))"),
    ],
)
async def test_a_sweep_whose_best_setting_is_the_default_says_so(session, strategy, suggested):
    own = await session()
    done = await sweep_in(Run(own), settings_of([strategy], concurrency=[4]), repeat=1)
    assert lines_of_sweep(done, ())[-1] == f"suggested: {suggested}"


@pytest.mark.parametrize(
    ("over", "suggested"),
    [("rate", "BatchClient(…): the defaults do"), ("limit", "BatchClient(…, limit=1)")],
)
async def test_a_search_for_a_rate_suggests_the_defaults(session, over, suggested):
    slo = Slo("p95<9s")
    result = await find_in(Run(await session(slo)), over, most=1.0)
    assert lines_of_search(result, [slo], over)[-1] == f"suggested: {suggested}"


@pytest.mark.parametrize("guise", ["vllm", "sglang", "tgi", "llamacpp", "trtllm", "openai"])
async def test_the_name_of_the_only_model_is_asked_for_once_and_sent(session, guise):
    """Some servers name no model in their answers, and TGI names another one than calls have."""
    own = await session(server=SimulatedServer("gpu", model="m", guise=GUISES[guise]))
    cell = await own.measure(Setting("singles", concurrency=2))
    assert cell.answered == cell.scheduled > 0
