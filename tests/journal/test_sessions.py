"""A session decides which server answers, and no answer: a journal's rows are found whatever it was."""

from tests.journal.jobs import sent_prompts
from tests.shell.scripted import ScriptedTransport, make_client

from batchclient import Server


async def test_a_session_is_no_part_of_what_a_row_is_known_by(path):
    server = ScriptedTransport()
    told = Server("http://scripted/v1", session_header="X-Session-ID")
    for session in ("a", "b"):
        async with make_client(server, base_url=told) as client:
            results = await client.batch_map(["p"], "{}", max_tokens=2, session=session, journal=path)
        assert len(results) == 1
    assert sent_prompts(server) == ["p"]
