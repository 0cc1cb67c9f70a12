"""Tests of code that calls a server: no server, no waiting, milliseconds each.

pytest -c /dev/null examples/testing    # in the clone, beside pytest and respx
"""

import asyncio

import pytest
import respx

from batchclient import BatchClient, BatchMapFailed
from batchclient.testing import MockLLM, VirtualClock, respx_vllm


async def label(texts: list[str], client: BatchClient) -> list[str]:
    """Label each text: the code under test."""
    answers = await client.batch_map(texts, "Label: {}\nOne word:", max_tokens=2)
    return [answer.text.strip() for answer in answers]


def run(mock_llm: MockLLM, *texts: str) -> list[str]:
    async def main() -> list[str]:
        async with mock_llm.client(timeout_s=60) as client:
            return await label(list(texts), client)

    return asyncio.run(main())


@pytest.mark.usefixtures("virtual_clock")  # on a busy machine the two calls might miss each other
def test_answers_are_scripted(mock_llm: MockLLM) -> None:
    mock_llm.when("Label: I love it\nOne word:").answer(" good")
    mock_llm.when().answer(" bad")
    assert run(mock_llm, "I love it", "It broke") == ["good", "bad"]
    mock_llm.assert_batched()


def test_a_busy_server_is_asked_again(mock_llm: MockLLM, virtual_clock: VirtualClock) -> None:
    mock_llm.when().fail(503, retry_after_s=20, times=2).answer(" good")
    assert run(mock_llm, "I love it") == ["good"]
    assert virtual_clock.elapsed_s >= 40  # of the test's clock, not of yours


def test_a_server_that_hangs_is_given_up(mock_llm: MockLLM, virtual_clock: VirtualClock) -> None:
    mock_llm.when().hang()
    with pytest.raises(BatchMapFailed, match="timeout_s passed"):
        run(mock_llm, "I love it")
    assert virtual_clock.elapsed_s == pytest.approx(60, abs=1)


def test_with_respx() -> None:
    async def main() -> list[str]:
        async with BatchClient("http://llm.test/v1", model="m") as client:
            return await label(["I love it", "It broke"], client)

    with respx.mock:
        respx.post("http://llm.test/v1/completions").mock(side_effect=respx_vllm(" good"))
        assert asyncio.run(main()) == ["good", "good"]
