"""The job of ``night.py`` with curator, in an environment that has it.

    PYTHON benchmarks/_night_curator.py IN OUT BASE_URL MAX_TOKENS CONCURRENCY

The working directory is beside OUT. As curator documents, the same call with the same working
directory goes on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bespokelabs import curator  # type: ignore[import-not-found, unused-ignore]


class Ask(curator.LLM):  # type: ignore[misc, unused-ignore]
    """One answer a row."""

    def prompt(self, row: dict[str, str]) -> str:
        """Return the row's prompt."""
        return row["prompt"]

    def parse(self, row: dict[str, str], response: str) -> dict[str, str]:
        """Return the row with its answer."""
        return {**row, "text": response}


def main(source: Path, out: Path, base_url: str, max_tokens: int, concurrency: int) -> None:
    asker = Ask(
        model_name="openai/instant",
        backend="litellm",
        generation_params={"max_tokens": max_tokens},
        backend_params={
            "base_url": base_url,
            "max_concurrent_requests": concurrency,
            "max_requests_per_minute": 1_000_000,
            "max_tokens_per_minute": 1_000_000_000,
            "require_all_responses": False,
        },
    )
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    answers = asker(rows, working_dir=str(out.with_suffix(".curator")))
    data = getattr(answers, "dataset", answers)
    out.write_text("".join(json.dumps(row) + "\n" for row in data))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
