"""A draft, a judge's word, and a revision where it is needed; after a kill nothing is asked twice.

python examples/draft_judge_revise.py
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from batchclient import BatchClient, RowClient
from batchclient.simulator import EmbeddedServer

TALKS = [{"id": f"talk-{number}", "topic": f"batching, part {number}"} for number in range(40)]


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def announce(row: dict[str, Any], client: RowClient) -> dict[str, Any]:
    """Write one announcement. Each answer is kept; all else of the function runs again."""
    draft = await client.chat(ask(f"Announce a talk about {row['topic']}."), max_tokens=40)
    # Three equal calls are three votes: each has an answer of its own.
    question = ask(f"Is this clear? Answer with one word.\n{draft.text}")
    votes = await asyncio.gather(*[client.chat(question, max_tokens=1, temperature=1) for _ in range(3)])
    unclear = len({vote.text for vote in votes}) > 1
    if unclear:
        draft = await client.chat(ask(f"Make this clearer:\n{draft.text}"), max_tokens=40)
    return {"text": draft.text, "revised": unclear}


async def run(base_url: str, journal: Path) -> None:
    async with BatchClient(base_url) as client:
        results = [result async for result in client.run(announce, TALKS, journal=journal)]
        revised = sum(result.answer["revised"] for result in results if result.answer)
        sent = client.statistics().submitted
    print(f"{len(results)} announcements, {revised} of them revised: {sent} calls sent")


async def main(base_url: str, folder: Path) -> None:
    await run(base_url, folder / "talks.journal")
    await run(base_url, folder / "talks.journal")  # as after a kill: the answers come from the journal


if __name__ == "__main__":
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url), Path(folder)))
