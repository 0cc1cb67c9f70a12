"""The job of ``night.py`` as people write it by hand: ``AsyncOpenAI``, a semaphore and ``gather``.

    python benchmarks/_night_scripts.py HOW IN OUT BASE_URL MAX_TOKENS CONCURRENCY

- ``at-the-end`` writes the output once all answers are there.
- ``append`` opens the output for each row and appends a line, as OpenAI's cookbook does; a second
  run skips the ids that are there.
- ``keep-open`` does the same with a file that stays open, and so with a buffer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from openai import AsyncOpenAI


def ids_in(out: Path) -> set[str]:
    """Return the ids of the lines that can be read."""
    ids = set()
    if out.exists():
        for line in out.read_text().splitlines():
            try:
                ids.add(json.loads(line)["id"])
            except ValueError:
                print("a line cannot be read, and is left out", file=sys.stderr)
    return ids


async def main(how: str, source: Path, out: Path, base_url: str, max_tokens: int, concurrency: int) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="none", timeout=600)
    semaphore = asyncio.Semaphore(concurrency)
    done = set() if how == "at-the-end" else ids_in(out)
    rows = [row for row in map(json.loads, source.read_text().splitlines()) if row["id"] not in done]
    kept_open = out.open("a") if how == "keep-open" else None

    async def ask(row: dict[str, str]) -> str:
        async with semaphore:
            reply = await client.chat.completions.create(
                model="instant", messages=[{"role": "user", "content": row["prompt"]}], max_tokens=max_tokens
            )
        line = json.dumps({**row, "text": reply.choices[0].message.content}) + "\n"
        if how == "append":
            with out.open("a") as file:
                file.write(line)
        elif kept_open is not None:
            kept_open.write(line)
        return line

    lines = await asyncio.gather(*map(ask, rows))
    if how == "at-the-end":
        out.write_text("".join(lines))
    if kept_open is not None:
        kept_open.close()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    )
