"""A small application: sorts support tickets, and drafts replies to those that complain.

``test_triage.py`` tests it.

python triage.py http://localhost:8000/v1 MODEL < tickets.txt
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from batchclient import BatchClient, BatchClientError

LABELS = ("complaint", "question", "praise")


@dataclass
class Ticket:
    text: str
    label: str
    draft: str | None = None


async def triage(texts: list[str], client: BatchClient, patience_s: float = 30.0) -> list[Ticket]:
    """Sort the tickets.

    A ticket whose label is none of ours, or does not come in time, is a question for a person.
    """
    answers = await client.batch_map(
        texts,
        "Ticket: {}\nOne word of complaint, question, praise:",
        max_tokens=4,
        timeout_s=patience_s,
        return_exceptions=True,
    )
    tickets = []
    for text, answer in zip(texts, answers, strict=True):
        label = "question" if isinstance(answer, Exception) else answer.text.strip().lower()
        tickets.append(Ticket(text, label if label in LABELS else "question"))
    await asyncio.gather(*[draft(ticket, client) for ticket in tickets if ticket.label == "complaint"])
    return tickets


async def draft(ticket: Ticket, client: BatchClient) -> None:
    """Draft a reply; without one, a person writes it."""
    messages = [{"role": "system", "content": "Apologise briefly."}, {"role": "user", "content": ticket.text}]
    try:
        ticket.draft = (await client.chat(messages, max_tokens=80)).text
    except BatchClientError:
        ticket.draft = None


async def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python triage.py BASE_URL MODEL < TICKETS")
    texts = [line.strip() for line in sys.stdin if line.strip()]
    async with BatchClient(sys.argv[1], model=sys.argv[2]) as client:
        for ticket in await triage(texts, client):
            print(ticket.label, "|", ticket.text, "|", ticket.draft or "-")


if __name__ == "__main__":
    asyncio.run(main())
