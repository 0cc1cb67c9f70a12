"""A journal of rows that are requests: every kind of answer comes back as it was."""

import json

from tests.shell.test_pooling import Recorder
from tests.shell.test_rows import batch, results_of


async def test_a_journal_has_every_kind_of_answer(tmp_path):
    rows = [
        batch("embeddings", input="a text"),
        batch("score", text_1="q", text_2="d"),
        batch("rerank", query="q", documents=["d", "e"]),
        batch("rerank", query="q", documents=["d", "e"], top_n=1),
        batch("completions", prompt="p", max_tokens=1),
    ]
    path = tmp_path / "journal"
    first = await results_of(Recorder(), rows, journal=path)
    server = Recorder()
    again = await results_of(server, rows[::-1], journal=path)
    assert not server.asked
    assert [each.answer for each in again] == [each.answer for each in first[::-1]]
    assert [each.id for each in again] == ["c-completions", "c-rerank", "c-rerank", "c-score", "c-embeddings"]
    job = json.loads(path.read_bytes().split(b"\n")[0])
    assert job["job"]["template"] is None
