"""What a journal says of a row's sending: when, for how long, beside how many others, with how long a prompt."""

import json
import time

import pytest
from pydantic import BaseModel
from tests.journal.jobs import look, run_job, texts
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, error

from batchclient import Backoff, Batching, Repair
from batchclient.journal.lines import sealed

LIBRARIES = ("asyncio",)
NUMBERS = {"sent", "seconds", "in_flight", "prompt_bytes"}
ALONE = {"batching": Batching(max_size=1), "retry": Backoff(max_attempts=2, base_s=0.001)}


class Clocked(ScriptedTransport):
    """It keeps the times at which each prompt came."""

    def __init__(self, *script):
        super().__init__(*script)
        self.came = {}

    async def send(self, request, timeouts):
        self.came.setdefault(json.loads(request.body)["prompt"], []).append(time.time())
        return await super().send(request, timeouts)


class Fits(BaseModel):
    fits: bool


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


async def test_a_record_says_when_the_answering_request_was_sent_and_beside_how_many(path):
    server, before = Clocked(error(503)), time.time()
    await run_job(texts(40), path, server=server, client=ALONE)
    after, records = time.time(), look(path)
    assert len(records) == 40 and max(each["in_flight"] for each in records) == 16
    for record in records:
        (prompt,) = [each for each in server.came if record["completion"]["choices"][0]["text"] == answer_to(each)]
        *failed, answered = server.came[prompt]
        assert len(failed) == record["attempts"] - 1
        assert max(before, *failed, 0.0) - 0.001 <= record["sent"] <= answered + 0.001
        assert 0 <= record["seconds"] and record["sent"] + record["seconds"] <= after + 0.001
        assert record["prompt_bytes"] == len(json.dumps(prompt))
    assert sum(each["attempts"] == 2 for each in records) == 1
    lines = path.read_bytes()
    await run_job(texts(40), path, client=ALONE)
    assert path.read_bytes() == lines, "what is reused is not sent, and says nothing new"


async def test_nothing_is_said_of_a_row_without_an_answer_or_with_one_made_of_several(path):
    def saying(name):
        body = b'{"choices": [{"index": 0, "text": "{\\"%s\\": true}", "finish_reason": "stop"}]}' % name
        return Reply(chunks=[body])

    await run_job(["fails"], path, server=ScriptedTransport(error(400)), client=ALONE)
    server = ScriptedTransport(saying(b"odd"), saying(b"fits"))
    again = {"response_model": Fits, "repair": Repair(invalid=1), "max_tokens": 3}
    (row,), _ = await run_job(["fits"], path.with_name("again"), server=server, client=ALONE, **again)
    assert row.attempts == 2 and row.answer.choices[0].parsed == Fits(fits=True)
    for record in look(path) + look(path.with_name("again")):
        assert not NUMBERS & record.keys()


async def test_a_journal_that_does_not_say_it_is_read_as_before(path):
    first, _ = await run_job(texts(3), path, client=ALONE)
    job, *lines = path.read_bytes().splitlines(keepends=True)
    older = []
    for line in lines:
        fields = {name: value for name, value in json.loads(line).items() if name not in NUMBERS | {"crc"}}
        older.append(sealed(json.dumps(fields, separators=(",", ":")).encode()))
    path.write_bytes(b"".join([job, *older]))
    again, server = await run_job(texts(3), path, client=ALONE)
    assert not server.sent and [row.answer for row in again] == [row.answer for row in first]
