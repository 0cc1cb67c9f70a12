"""One durable job: its input, its command, and what is true of its files at any moment.

A row's prompt is its ``text``, so that an answer names its row.
"""

import json
import re
import shutil
import sqlite3
import zlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.crashes.server import answer_to

__all__ = ["Job", "Line", "line_of", "lines_of", "plain_lines"]


@dataclass(frozen=True)
class Line:
    """One line of the input, and its row of the output.

    Args:
        data: the line.
        row: the fields that the output repeats.
        prompt: what the server is sent; ``None``: the line is unusable.
        error: the type of the row's error at the very end, if it has one.
    """

    data: bytes
    row: dict
    prompt: str | None
    error: str | None = None

    @property
    def outcome(self):
        answer = None if self.error else answer_to(self.prompt)
        return shown(self.row, answer, self.error)


def shown(row, answer, error):
    return json.dumps([row, answer, error], sort_keys=True, ensure_ascii=False)


def plain_lines(count):
    return [line_of({"id": number, "text": f"text {number}"}) for number in range(count)]


def line_of(row, error=None):
    return Line(json.dumps(row, ensure_ascii=False).encode(), row, row["text"], error)


def lines_of(count, seed=0):
    """Lines of every kind: plain, repeated, unusable, refused for good, for now and for a moment."""
    random = Random(seed)
    lines = []
    for number in range(count):
        kind = random.random()
        if number % 150 == 60:
            # A refused key puts every row in doubt: such rows are few, and far from each other.
            lines.append(line_of({"id": number, "text": f"once {number}"}))
        elif kind < 0.75 or number < 8:
            lines.append(line_of({"id": number, "text": f"text {number}"}))
        elif kind < 0.85:
            # Many rows have one prompt, and no id.
            lines.append(line_of({"text": f"again {number % 3}"}))
        elif kind < 0.91:
            data = random.choice([b'{"text": ', b"[1]", b'{"text": "\xff"}', b"3"])
            lines.append(Line(data, {"line": number + 1}, None, "BadRow"))
        elif kind < 0.98:
            lines.append(line_of({"id": number, "text": f"bad {number}"}, "BadRequest"))
        else:
            lines.append(line_of({"id": number, "text": f"busy {number}"}))
    return lines


class Job:
    """A job in a folder of its own.

    Args:
        folder: empty.
        server: an ``AccountServer``.
        commands: start its processes.
        lines: of the input.
        options: further arguments of the command.
        data: the whole input, if it is not one line after the other.
        form: the ending of its name.
    """

    def __init__(self, folder, server, commands, lines, *options, data=None, form="jsonl"):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.server = server
        self.source = folder.with_name(f"{folder.name}.{form}")
        self.give(lines, data)
        self.out = folder / "out.jsonl"
        self.options = options
        self.without = ()
        self.commands = commands

    def give(self, lines, data=None):
        """Write the input, or another one."""
        self.lines = lines
        self.source.write_bytes(b"".join(line.data + b"\n" for line in lines) if data is None else data)

    @property
    def arguments(self):
        arguments = ["map", self.source, "-o", self.out, "--base-url", self.server.base_url, "--model", "m"]
        arguments += ["--prompt", "{text}", "--max-tokens", 4, "--resume", *self.options]
        return [each for each in arguments if each not in self.without]

    def start(self, *more, plan=None):
        """Start the command; it writes nothing into the folder but its files."""
        self.server.new_run()
        return self.commands.start([*self.arguments, *more], self.folder.parent, plan)

    def start_beside(self, *more):
        """Start a second command, while the first is under way."""
        return self.commands.start([*self.arguments, *more], self.folder.parent)

    def run(self, *more, plan=None):
        """Run the command to its end, whichever that is."""
        command = self.start(*more, plan=plan)
        command.wait()
        return command

    def publish(self, plan=None):
        """Run ``batchclient job publish`` to its end."""
        self.server.new_run()
        ended = self.commands.start(["job", "publish", self.place], self.folder.parent, plan)
        ended.wait()
        return ended

    # The output ------------------------------------------------------------------------------------------------------

    def whole_rows(self, path=None):
        """The rows of the output, or of another file; a last line without its end is none."""
        path = path or self.out
        data = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in data.split(b"\n")[:-1]]

    def outcome(self, row):
        """A row of the output, so that it can be compared with its line's."""
        row = {name: value for name, value in row.items() if name != "usage"}
        answer, error = row.pop("completion", None), row.pop("error", {}).get("type")
        row.pop("finish_reason", None)
        if re.fullmatch("[0-9a-f]{16}-[0-9]+", str(row.get("id"))):
            # Made by the command for a row without one.
            del row["id"]
        return shown(row, answer, error)

    def check_whole(self, *, ordered=True):
        """Rule 1: the rows of the output are those of the input, each with its right answer."""
        assert not self.out.exists() or self.out.read_bytes().endswith(b"\n")
        found = [self.outcome(row) for row in self.whole_rows()]
        wanted = [line.outcome for line in self.lines]
        missing, surplus = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        assert not missing and not surplus, f"missing {list(missing)[:5]}, too many {list(surplus)[:5]}"
        if ordered:
            assert found == wanted
        ids = [row["id"] for row in self.whole_rows() if "id" in row]
        assert len(set(ids)) == len(ids)

    # The journal -----------------------------------------------------------------------------------------------------

    @property
    def place(self):
        """The folder of the job's own files."""
        return self.out.with_name(f"{self.out.name}.job")

    @property
    def manifest(self):
        return self.place / "done.json"

    def wanted(self):
        """How often each prompt is asked for."""
        return Counter(line.prompt for line in self.lines if line.prompt is not None)

    def seen(self):
        """The rows of the journal while the command is under way."""
        path = self.place / "journal.sqlite"
        try:
            connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        except sqlite3.OperationalError:
            return Kept()
        try:
            return Kept.read(connection)
        except sqlite3.OperationalError as error:
            # It is being made.
            assert "no such table" in str(error) or "readonly database" in str(error), error
            return Kept()
        finally:
            connection.close()

    def kept(self):
        """The rows of the journal after the end of the command."""
        path = self.place / "journal.sqlite"
        if not path.exists() or not path.stat().st_size:
            return Kept()
        # A copy: the next run is to find the files as the kill has left them.
        copy = self.folder.with_name(f"{self.folder.name}.copy")
        copy.mkdir()
        for each in self.place.glob("journal.sqlite*"):
            shutil.copy(each, copy)
        connection = sqlite3.connect(copy / path.name)
        try:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'row'").fetchone():
                return Kept()
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            twice = connection.execute("SELECT count(*) FROM row GROUP BY key, n HAVING count(*) > 1").fetchall()
            assert not twice, f"{len(twice)} rows have two records"
            return Kept.read(connection)
        finally:
            connection.close()
            shutil.rmtree(copy)

    def check_kept(self):
        """Rule 4: each row that was written is in the journal. Return what the journal has."""
        kept = self.kept()
        # Rows that replace those of the output are written beside it.
        for path in (self.out, self.out.with_name(f"{self.out.name}.part")):
            rows = self.whole_rows(path)
            answers = Counter(row["completion"] for row in rows if "completion" in row)
            assert answers <= kept.answers, f"not in the journal: {list(answers - kept.answers)[:5]}"
            assert len(rows) <= kept.total, "a row that failed is not in the journal"
        return kept


@dataclass
class Kept:
    """What a journal has.

    Attributes:
        answers: how often each answer is there.
        failed, may_be_tried: how often each id (``None`` of a row without) is there as failed.
        written_bytes: of the output, which a resume takes as written.
    """

    answers: Counter = field(default_factory=Counter)
    failed: Counter = field(default_factory=Counter)
    may_be_tried: Counter = field(default_factory=Counter)
    written_bytes: int = 0

    @classmethod
    def read(cls, connection):
        """What a journal has, from a connection to it."""
        kept = cls()
        for (mark,) in connection.execute("SELECT value FROM meta WHERE name = 'output'"):
            kept.written_bytes = json.loads(mark)["size"]
        for own_id, state, body in connection.execute("SELECT id, state, body FROM row"):
            if state == 1:
                kept.answers[answer_in(body)] += 1
            else:
                (kept.failed if state == 2 else kept.may_be_tried)[own_id] += 1
        return kept

    @property
    def total(self):
        return self.answers.total() + self.failed.total() + self.may_be_tried.total()

    def answers_of(self, prompt):
        return self.answers[answer_to(prompt)]

    def failed_of(self, prompt):
        """Prompts that are refused end with the id of their row."""
        return self.failed[prompt.rpartition(" ")[2]]


def answer_in(body):
    body = body if body[:1] == b"{" else zlib.decompress(body)
    return json.loads(body)["choices"][0]["text"]
