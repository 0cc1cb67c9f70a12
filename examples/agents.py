"""Fifty agents at once: each asks, uses a tool, and asks again, until it has its answer.

python examples/agents.py

The model names its tool in JSON that fits a schema. Such calls share requests, where a call with
`tools=` goes alone, and the server needs no parser of tool calls.
"""

import asyncio
import os
from typing import Literal

from pydantic import BaseModel, Field

from batchclient import AnswerInvalid, BatchClient, Batching
from batchclient.simulator import EmbeddedServer

MOST_TURNS = 6


class Step(BaseModel):
    tool: Literal["search", "add", "answer"]
    input: str = Field(max_length=20)


def search(query: str) -> str:
    return f"3 pages about {query!r}"


def add(numbers: str) -> str:
    return str(sum(int(each) for each in numbers.split() if each.isdigit()))


TOOLS = {"search": search, "add": add}
SYSTEM = f"Tools: {', '.join(TOOLS)}. Take one step at a time. When you know the answer, the tool is 'answer'."


async def agent(client: BatchClient, task: str) -> str | None:
    """Work on one task; return the answer, or None after too many turns or a step that does not fit."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    for _ in range(MOST_TURNS):
        try:
            step: Step = (await client.chat(messages, max_tokens=60, response_model=Step)).parsed
        except AnswerInvalid:
            return None  # cut off, or no Step: this agent ends, and the others go on
        if step.tool == "answer":
            return step.input
        messages.append({"role": "assistant", "content": step.model_dump_json()})
        messages.append({"role": "user", "content": TOOLS[step.tool](step.input)})
    return None


async def main(base_url: str) -> None:
    # Chats above 32 tokens go one by one, unless more are allowed: a step has up to 60.
    async with BatchClient(base_url, batching=Batching(chat_list_tokens=64)) as client:
        answers = await asyncio.gather(*[agent(client, f"Task {number}") for number in range(50)])
        counts = client.statistics()
    done = sum(answer is not None for answer in answers)
    print(f"{done} of {len(answers)} agents have an answer: {counts.succeeded} turns in {counts.batches} requests")


if __name__ == "__main__":
    with EmbeddedServer() as server:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url)))
