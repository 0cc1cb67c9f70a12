"""``fail_if`` of maps: the map ends with an error of its own, which has the bound and the rows so far."""

import pickle

import pytest

from batchclient import BatchMapFailed, ConfigError, TooManyBadRows
from tests.shell.scripted import ScriptedTransport, error, make_client
from tests.shell.test_map_results import BOTH, refuse
from tests.shell.test_maps import texts

LIBRARIES = ("asyncio",)


@BOTH
async def test_a_bound_ends_a_map_at_its_end(batch_map):
    bad = [f"text {number}" for number in range(0, 100, 20)]
    with pytest.raises(TooManyBadRows) as caught:
        await batch_map(refuse(*bad), texts(100), fail_if=["empty>1%", "failed>4.9%"], return_exceptions=True)
    broken = caught.value
    assert str(broken) == "failed>4.9%: 5 of 100 rows (5 %)"
    assert (broken.rule, broken.count, broken.rows, broken.is_early) == ("failed>4.9%", 5, 100, False)
    assert (
        isinstance(broken, BatchMapFailed) and len(broken.results) == 100 and broken.results.health["truncated"] == 95
    )
    assert vars(pickle.loads(pickle.dumps(broken)))["rule"] == "failed>4.9%"
    # A share at the bound breaks nothing.
    answers = await batch_map(refuse(*bad), texts(100), fail_if=["failed>5%"], return_exceptions=True)
    assert len(answers) == 100


@BOTH
async def test_a_bound_ends_a_map_early_where_that_is_certain(batch_map):
    server = ScriptedTransport(*[error(400, "bad")] * 1000)
    with pytest.raises(TooManyBadRows, match=r"failed>5%: 50 of the first 50 rows \(100 %\)") as caught:
        await batch_map(server, texts(4000), fail_if=["failed>5%"])
    assert caught.value.is_early and 50 <= len(caught.value.results) < 4000


@BOTH
async def test_there_is_no_early_end_once_all_rows_have_ended(batch_map):
    with pytest.raises(TooManyBadRows, match=r"truncated>5%: 50 of 50 rows \(100 %\)") as caught:
        await batch_map(refuse(), texts(50), fail_if=["truncated>5%"])
    assert not caught.value.is_early and len(caught.value.results) == 50


async def test_a_stream_yields_its_rows_first():
    async with make_client(refuse("text 1")) as client:
        rows = client.stream_map(texts(40), "{}", fail_if="failed>1%")
        seen = []
        with pytest.raises(TooManyBadRows, match=r"failed>1%: 1 of 40 rows \(2.5 %\)"):
            async for row in rows:
                seen.append(row.index)
        assert sorted(seen) == [*range(40)]
        for call, wrong in (("complete", ["slow>1%"]), ("complete", 5), ("embed", ["truncated>1%"])):
            with pytest.raises(ConfigError, match="fail_if: such as"):
                client.stream_map(texts(1), "{}", call=call, fail_if=wrong)
