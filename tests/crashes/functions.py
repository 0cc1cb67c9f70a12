"""Random functions of rows for ``run``: drawn from a seed, run in a process that is killed, or on what a server would say.

run SEED URL JOURNAL OUT   # in a fork of the ``starter``
"""

import asyncio
import json
from collections import Counter
from random import Random

from tests.crashes.server import answer_to

from batchclient import BadRequest, BatchClient, Batching
from batchclient.types import Choice, Completion

__all__ = ["LIMIT", "expected", "main"]

LIMIT, ROWS = 8, 40


def rows_of(seed):
    """Rows with an id and without, some of them equal, texts among them."""
    random = Random(seed)
    return [
        random.choice([{"id": number, "text": f"a{number}"}, {"text": f"b{number % 7}"}, f"c{number % 5}"])
        for number in range(ROWS)
    ]


def function_of(seed):
    """Return an async function of a row and a client: calls, branches, equal calls, gathers, errors."""
    random = Random(seed + 1)
    steps = [
        (
            random.choice(["call", "call", "equal", "gather", "branch", "refused", "sleep", "raise"]),
            random.randrange(1, 4),
        )
        for _ in range(random.randrange(2, 7))
    ]

    async def function(row, client):
        text = row["text"] if isinstance(row, dict) else row
        heard = []
        for place, (kind, number) in enumerate(steps):
            if kind == "branch" and len(text) % 2:
                kind = "gather"
            prompts = [f"{place}.{n} {text}"[:60] for n in range(number)]
            match kind:
                case "call" | "branch":
                    heard.append((await client.complete(prompts[0])).text)
                case "equal":
                    calls = (client.complete(prompts[0], temperature=1) for _ in range(number + 1))
                    heard += [answer.text for answer in await asyncio.gather(*calls)]
                case "gather":
                    heard += [answer.text for answer in await asyncio.gather(*map(client.complete, prompts))]
                case "refused":
                    try:
                        await client.complete(f"bad {prompts[0]}")
                    except BadRequest:
                        heard.append("refused")
                case "sleep":
                    await asyncio.sleep(0.001 * number)
                case "raise" if text.endswith("3"):
                    raise ValueError(text)
            text = heard[-1][1:-1] if heard else text
        return heard

    return function


class Expected:
    """A client that answers as the server does, and counts the prompts."""

    def __init__(self):
        self.came = Counter()

    async def complete(self, prompt, **_):
        self.came[prompt] += 1
        if "bad" in prompt:
            raise BadRequest("no such prompt")
        return Completion((Choice(0, answer_to(prompt), "stop"),))


def expected(seed):
    """Return what an unkilled run gives for each row, and which prompts it sends."""
    client, function = Expected(), function_of(seed)

    async def outcomes():
        found = []
        for row in rows_of(seed):
            try:
                found.append([await function(row, client), None])
            except ValueError as error:
                found.append([None, str(error)])
        return found

    return asyncio.run(outcomes()), client.came


async def results_of(seed, base_url, journal):
    found = {}
    async with BatchClient(base_url, model="m", limit=LIMIT, batching=Batching(max_size=1), probe=False) as client:
        async for result in client.run(function_of(seed), rows_of(seed), journal=journal):
            found[result.index] = [result.answer, None if result.error is None else str(result.error)]
    return [found[index] for index in range(ROWS)]


def main(seed, base_url, journal, out):
    """Be the process; return its exit status."""
    found = asyncio.run(results_of(int(seed), base_url, journal))
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return 0
