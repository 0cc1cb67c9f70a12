"""What the tests of journals share: a job against a server in memory, and a look into the file."""

from tests.shell.scripted import ScriptedTransport, answer_to, make_client

from batchclient.journal.held import HeldJournal
from batchclient.journal.lease import System

__all__ = ["Elsewhere", "answers", "look", "run_job", "sent_prompts", "states", "texts"]


class Elsewhere(System):
    """Another machine: its ``flock`` succeeds whatever the others hold, as on many network mounts."""

    def __init__(self, host):
        super().__init__(host=host, boot=host)

    def lock(self, descriptor):
        return True


def texts(count):
    return [f"text {number}" for number in range(count)]


def sent_prompts(server):
    return [prompt for prompts in server.prompts for prompt in prompts]


async def run_job(documents, journal, prompt="Say: {}", *, server=None, client=None, **arguments):
    """Map the documents; return the rows and the server."""
    server = server or ScriptedTransport()
    async with make_client(server, limit=16, **(client or {})) as made:
        rows = [row async for row in made.stream_map(documents, prompt, journal=journal, **arguments)]
    return rows, server


def answers(rows):
    """By place: the answers' texts; each is the one of its document."""
    for row in rows:
        assert row.error is not None or row.answer.text == answer_to(f"Say: {row.document}")
    return {row.index: None if row.error else row.answer.text for row in rows}


def look(path):
    """The records in the file, as one that only reads it finds them."""
    journal = HeldJournal.look_into(path)
    try:
        assert journal.damaged_count == 0
        return list(journal.records())
    finally:
        journal.close()


def states(path):
    return sorted(record["state"] for record in look(path))
