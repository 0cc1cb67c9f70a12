"""``batchclient map``: a file of rows in, the same rows with completions out.

Rules:
- A wrong command is refused before anything is sent and before the output is touched.
- The fault of a row is written into the row; the exit status says that there was such a row.
- No message holds the key or the text of a row.
"""

from __future__ import annotations

from batchclient.cli._map_options import MapOptions
from batchclient.cli._options import command_of
from batchclient.cli._run import run_map

__all__ = ["map_rows"]


@command_of(MapOptions)
def map_rows(options: MapOptions) -> int:
    """Make one call per row of IN and write each row with its answer.

    IN is JSONL, CSV or TSV with a header, text with a document per line, each also packed by gzip,
    bzip2, xz or zstd, or Parquet or Arrow; a folder or a pattern of these, such as
    'data/*.parquet'; or a URL. --prompt makes the prompts. Without it each row is a request:
    messages, prompt, conversations, or a line of an OpenAI Batch file.

    A row of OUT has the fields of its row of IN, an id, and completion, finish_reason,
    health and usage, or error. With --call embed it has embedding and usage instead, with
    --call classify label, probabilities and usage. The same command again goes on where it ended.

    Exit status: 0 all rows succeeded, 1 some failed, 2 wrong usage, 3 a bound
    (--max-cost, --fail-if) or no after --pilot, 4 disk full, 5 no server, 129 hangup, 130
    Ctrl-C, 143 SIGTERM.
    """
    return run_map(options)
