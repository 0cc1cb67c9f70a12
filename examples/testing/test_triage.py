"""The application's tests: no server, no waiting, milliseconds each.

Run ``python -m pytest`` in this folder.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from triage import Ticket, triage

from batchclient.testing import MockLLM, VirtualClock

Run = Callable[..., list[Ticket]]


@pytest.fixture
def tickets(mock_llm: MockLLM) -> Run:
    """Triage texts with a client that is wired to the scripted server."""
    # Of two patterns that fit, the one given last decides: so a test can put its own before these.
    mock_llm.when(re.compile("Ticket: ")).answer(" no idea")
    mock_llm.when(re.compile("Ticket: .*(broken|late)")).answer(" Complaint")
    mock_llm.when(re.compile("Ticket: .*thank", re.IGNORECASE)).answer(" praise")
    mock_llm.when(lambda call: call.kind == "chat").answer(lambda call: f"Sorry about: {call.prompt}")

    def run(*texts: str, **arguments: float) -> list[Ticket]:
        async def main() -> list[Ticket]:
            async with mock_llm.client() as client:
                return await triage(list(texts), client, **arguments)

        return asyncio.run(main())

    return run


def test_complaints_get_a_draft(tickets: Run, mock_llm: MockLLM) -> None:
    assert tickets("It is broken", "Thanks a lot") == [
        Ticket("It is broken", "complaint", "Sorry about: It is broken"),
        Ticket("Thanks a lot", "praise"),
    ]
    mock_llm.assert_called_with("It is broken", kind="chat", max_tokens=80)


def test_a_label_that_is_none_is_a_question(tickets: Run) -> None:
    assert tickets("Where is it?")[0].label == "question"


def test_a_thousand_tickets_take_few_requests(tickets: Run, mock_llm: MockLLM) -> None:
    assert len(tickets(*[f"Ticket {number} came late" for number in range(1000)])) == 1000
    mock_llm.assert_called(times=2000)
    mock_llm.assert_batched()


def test_a_server_that_is_busy_is_asked_again(tickets: Run, mock_llm: MockLLM, virtual_clock: VirtualClock) -> None:
    mock_llm.when(re.compile("Ticket: It is broken")).fail(503, retry_after_s=10, times=1).answer(" complaint")
    assert tickets("It is broken")[0].label == "complaint"
    assert virtual_clock.elapsed_s >= 10


def test_a_server_that_hangs_costs_no_more_than_our_patience(
    tickets: Run, mock_llm: MockLLM, virtual_clock: VirtualClock
) -> None:
    mock_llm.when(re.compile("Ticket: It is broken")).hang()
    assert tickets("It is broken", patience_s=60)[0].label == "question"
    assert virtual_clock.elapsed_s == pytest.approx(60, abs=1)


def test_without_a_draft_the_ticket_is_there_all_the_same(tickets: Run, mock_llm: MockLLM) -> None:
    mock_llm.when("It is broken").fail(400)
    assert tickets("It is broken") == [Ticket("It is broken", "complaint")]
