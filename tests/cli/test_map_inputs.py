"""``batchclient map`` on folders, patterns, URLs, and on rows with pictures."""

import base64
import json
import os
import threading

import pytest

from batchclient.jobs.media import Media
from tests.fakes.pages import serving

from .conftest import PNG, read_rows, write_rows


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    write_rows(tmp_path / "in" / "a.jsonl", [{"id": "a", "text": "1"}])
    (tmp_path / "in" / "b.jsonl").write_text('{"id": "b", "text": "2"}\n{\n{"id": "c"}\n')
    return tmp_path / "in"


def test_a_folder_is_one_job(cli_map, folder, out):
    first = cli_map(folder, "-o", out)
    assert first.exit_code == 1
    a, b, damaged, missing = read_rows(out)
    assert (a["id"], b["id"], "completion" in a, "completion" in b) == ("a", "b", True, True)
    assert (damaged["file"], damaged["line"]) == ("b.jsonl", 2)
    assert damaged["error"]["message"].startswith("b.jsonl line 2 is not JSON: ")
    assert missing["error"]["message"].startswith("b.jsonl line 3: the document has no field 'text'")
    assert ", such as b.jsonl line 2: is not JSON" in first.stderr
    assert "nothing to do" in cli_map(folder, "-o", out).stderr
    write_rows(folder / "c.jsonl", [{"id": "d", "text": "3"}])
    again = cli_map(folder, "-o", out)
    assert "reused: 2" in again.stderr
    assert [row.get("id") for row in read_rows(out)] == ["a", "b", None, "c", "d"]


def test_no_output_is_a_part_of_the_input(cli_map, folder):
    told = cli_map(folder, "-o", folder / "out.jsonl")
    assert told.exit_code == 2
    assert "would have this file, too; rows would be read again" in told.stderr
    for source, args in ((folder, ["--journal", folder / "j.jsonl"]), (folder / "**" / "*.jsonl", [])):
        told = cli_map(source, "-o", folder.parent / "out.jsonl" if args else folder / "o.jsonl", *args)
        assert (told.exit_code, "would have this file, too" in told.stderr) == (2, True)
        assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_a_url_is_read_in_a_thread_and_its_secrets_stay(cli_map, folder, out):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/job/a.jsonl", (folder / "a.jsonl").read_bytes())
    told = cli_map("memory://user:canary@/nothing/*.jsonl", "-o", out)
    assert (told.exit_code, told.stderr) == (2, "Error: memory:///nothing/*.jsonl: no file has such a name\n")
    assert cli_map("memory://job/*.jsonl", "-o", out).exit_code == 0
    assert [row["id"] for row in read_rows(out)] == ["a"]
    assert '"memory://job/*.jsonl"' in out.with_name("out.jsonl.journal").read_text()
    told = cli_map("memory://job/none.jsonl", "-o", out)
    assert (told.exit_code, told.stderr) == (2, "Error: memory://job/none.jsonl: No such file or directory\n")


def test_pictures_are_parts_of_the_chat_and_paths_stay_in_the_output(cli, tmp_path, out, monkeypatch):
    threads = set()

    def read_ahead(self, row):
        threads.add(threading.current_thread())
        return read(self, row)

    read = Media.read_ahead
    monkeypatch.setattr(Media, "read_ahead", read_ahead)

    def answer(asked):
        if not asked.path.endswith("/chat/completions"):
            return 404, {}
        choice = {"index": 0, "message": {"role": "assistant", "content": "a cat"}, "finish_reason": "stop"}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "link.png").symlink_to("/etc/hostname")
    rows = [{"picture": name} for name in ("a.png", "https://host/b.png", "link.png", None)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    with serving(answer) as server:
        options = ["--base-url", server.url, "--model", "m", "--prompt", "What is it?", "--image", "picture"]
        chats = [*options, "--call", "chat", "--media-root", tmp_path]
        assert cli("map", source, "-o", out, *chats).exit_code == 1
        sent = [asked.json["messages"] for asked in server.asked if asked.method == "POST"]
        for args, why in [
            (options, "--image and --audio are for --call chat"),
            ([*options, "--call", "chat"], "line 1: 'picture' is a path, and no --media-root says where paths begin"),
            ([*chats, "--image", "other"], "line 1 has no field 'other'"),
            ([*chats, "--media-root", source], f"--media-root: {source} is no folder"),
        ]:
            told = cli("map", source, "-o", tmp_path / "no.jsonl", *args)
            assert (told.exit_code, told.stderr) == (2, f"Error: {why}\n")
        # Nothing is asked again but the picture that has changed; of another root, too.
        for root, asked_anew in ((tmp_path / "other", 1), (tmp_path, 0)):
            root.mkdir(exist_ok=True)
            (root / "a.png").write_bytes(PNG if root == tmp_path else PNG + b"other")
            before = len(server.asked)
            told = cli("map", source, "-o", out, *chats, "--media-root", root)
            posts = [asked for asked in server.asked[before:] if asked.method == "POST"]
            assert (told.exit_code, len(posts), "nothing to do" in told.stderr) == (1, asked_anew, False)
    assert threads
    assert threading.main_thread() not in threads
    text = {"type": "text", "text": "What is it?"}
    urls = [f"data:image/png;base64,{base64.b64encode(PNG).decode()}", "https://host/b.png"]
    contents = [[{"type": "image_url", "image_url": {"url": url}}, text] for url in urls] + ["What is it?"]
    assert sorted(sent, key=json.dumps) == sorted(
        [[{"role": "user", "content": content}] for content in contents], key=json.dumps
    )
    made = read_rows(out)
    assert [row["picture"] for row in made] == [row["picture"] for row in rows]
    assert [row.get("completion") for row in made] == ["a cat", "a cat", None, "a cat"]
    assert made[2]["error"] == {"type": "BadRow", "message": "line 3: 'picture' leads out of --media-root"}


def test_a_pilot_opens_the_pictures_of_its_rows_alone_and_a_finished_job_none(cli, tmp_path, out, monkeypatch):
    opened, open_file = [], os.open

    def noted(path, *options, **more):
        opened.extend([path] if os.fspath(path).endswith("a.png") else [])
        return open_file(path, *options, **more)

    monkeypatch.setattr(os, "open", noted)
    choice = {"index": 0, "message": {"role": "assistant", "content": "a cat"}, "finish_reason": "stop"}
    (tmp_path / "a.png").write_bytes(PNG)
    source = write_rows(tmp_path / "in.jsonl", [{"picture": "a.png", "text": f"{number}"} for number in range(60)])
    with serving(lambda asked: (200, {"id": "1", "choices": [choice]})) as server:
        options = ["--base-url", server.url, "--model", "m", "--prompt", "{text}", "--image", "picture"]
        chats = [*options, "--call", "chat", "--media-root", tmp_path]
        told = cli("map", source, "-o", out, *chats, "--pilot", 20, "--first", 60)
        assert told.exit_code == 0, told.output
        # The first row is looked at before all others, twice.
        assert len(opened) == 2 + 20 + 60
        opened.clear()
        assert "nothing to do" in cli("map", source, "-o", out, *chats, "--first", 60).stderr
        assert len(opened) == 2
        (tmp_path / "a.png").write_bytes(PNG + b"other")
        changed = cli("map", source, "-o", out, *chats, "--first", 60)
        assert changed.exit_code == 0 and "nothing to do" not in changed.stderr


def test_pictures_of_finished_rows_take_no_room_behind_a_slow_one(cli, tmp_path, out, monkeypatch):
    size = len("data:image/png;base64,") + len(base64.b64encode(PNG))
    monkeypatch.setattr("batchclient.jobs.media.MOST_OPEN_BYTES", 3 * size)
    others, answered = threading.Event(), []

    def answer(asked):
        if not asked.path.endswith("/chat/completions"):
            return 404, {}
        name = asked.json["messages"][0]["content"][1]["text"]
        if name == "0" and not others.wait(10):
            return 400, {"error": {"message": "no other row was sent"}}
        answered.append(name)
        if len(answered) == 19:
            others.set()
        choice = {"index": 0, "message": {"role": "assistant", "content": name}, "finish_reason": "stop"}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    (tmp_path / "a.png").write_bytes(PNG)
    source = write_rows(tmp_path / "in.jsonl", [{"picture": "a.png", "text": f"{number}"} for number in range(20)])
    with serving(answer) as server:
        options = ["--base-url", server.url, "--model", "m", "--prompt", "{text}", "--image", "picture"]
        told = cli("map", source, "-o", out, *options, "--call", "chat", "--media-root", tmp_path)
    assert told.exit_code == 0, told.output
    assert [row["completion"] for row in read_rows(out)] == [f"{number}" for number in range(20)]
    assert answered[-1] == "0"
