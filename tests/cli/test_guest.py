"""``batchclient map --guest``: a server that shows no load ends it, with what to give instead."""

import threading

from tests.fakes.pages import serving

from batchclient.jobs.statuses import Status

from .conftest import rows_of, write_rows


def test_a_server_that_shows_no_load_is_refused_and_the_same_command_without_the_guest_goes_on(cli, tmp_path, out):
    was_refused = threading.Event()

    def answer(asked):
        if asked.method == "GET":
            return 404, {}
        was_refused.wait(30)
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        return 200, {"id": "1", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    source = write_rows(tmp_path / "in.jsonl", rows_of(40))
    with serving(answer) as running:
        given = ["--base-url", running.url, "--model", "m", "--call", "chat", "--prompt", "{text}", "-o", out]
        done = cli("map", source, *given, "--guest")
        assert done.exit_code == Status.USAGE
        told = f"Error: --guest: {running.url} shows no load (it answers 404), and a guest has to see what others have there"
        assert done.stderr.splitlines()[-1] == f"{told}; give a number instead, such as --concurrency 8"
        assert not out.exists()
        was_refused.set()
        assert cli("map", source, *given).exit_code == 0
    assert len(out.read_text().splitlines()) == 40
