"""What the tests of journals share: a job against a server in memory, and a look into the file."""

import sqlite3

from tests.shell.scripted import ScriptedTransport, answer_to, make_client

__all__ = ["answers", "look", "run_job", "sent_prompts", "texts"]


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


def look(path, statement="SELECT count(*) FROM row"):
    """Ask the file, as another connection that only reads."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()
