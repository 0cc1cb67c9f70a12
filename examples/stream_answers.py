"""An answer printed as it is written, and one whose reader leaves early.

python examples/stream_answers.py

Each stream is a request of its own, within the client's limit, queue and retries.
"""

import asyncio
import os

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer


def ask(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


async def main(base_url: str) -> None:
    async with BatchClient(base_url) as client:
        async with client.stream_chat(ask("Is a whale a fish?"), max_tokens=40) as pieces:
            async for piece in pieces:
                print(piece.text, end="", flush=True)
        print(f"\n{pieces.completion.usage.completion_tokens} tokens")

        text = ""
        async with client.stream_chat(ask("Tell me of whales."), max_tokens=2000) as pieces:
            async for piece in pieces:
                text += piece.text
                if len(text) > 30:
                    break  # the connection is closed, so the server stops
        print(f"left after {text!r}")


if __name__ == "__main__":
    with EmbeddedServer("gpu") as server:  # it writes as fast as a GPU, so that there is something to leave
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url)))
