"""The examples of the page about inputs: their files go in, and what the page says comes out."""

import json
import re
import shlex
from pathlib import Path

from tests.fakes.pages import serving

from .conftest import read_rows

PAGE = (Path(__file__).parents[2] / "docs/reference/rows_in.md").read_text()
BLOCK = re.compile(r"^```(text|json|jsonl) ?(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def section(heading):
    return BLOCK.findall(PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])


def check(cli, url, blocks, monkeypatch, folder):
    """Write a section's files, run its command, compare its output; return its block of JSON."""
    monkeypatch.chdir(folder)
    command, chat = "", None
    for kind, name, text in blocks:
        if kind == "text":
            command = text.replace("--base-url …", f"--base-url {url}").replace("--model m", "--model m")
            (folder / "out.jsonl").unlink(missing_ok=True)
            cli(*shlex.split(command)[1:])
        elif kind == "json":
            chat = json.loads(text)
        elif name == "out.jsonl":
            made = [{**row, "completion": "…"} if "completion" in row else row for row in read_rows(folder / name)]
            assert [{key: row[key] for key in row if key != "usage"} for row in made] == read_rows(text.encode())
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return chat


def test_several_files(cli, server, monkeypatch, tmp_path):
    blocks = [(*each[:2], each[2].replace("--model m", f"--model {server.model}")) for each in section("Several files")]
    check(cli, server.base_url, blocks, monkeypatch, tmp_path)


def test_pictures_and_sounds(cli, monkeypatch, tmp_path):
    def answer(asked):
        if not asked.path.endswith("/chat/completions"):
            return 404, {}
        choice = {"index": 0, "message": {"role": "assistant", "content": "a cat"}, "finish_reason": "stop"}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    (tmp_path / "pictures" / "animals").mkdir(parents=True)
    (tmp_path / "pictures" / "animals" / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with serving(answer) as fake:
        chat = check(cli, fake.url, section("Pictures and sounds"), monkeypatch, tmp_path)
        assert chat in [asked.json["messages"] for asked in fake.asked if asked.method == "POST"]
