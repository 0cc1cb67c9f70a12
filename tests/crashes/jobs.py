"""One durable job: its input, its command, and what is true of its files at any moment.

A row's prompt is its ``text``, so that an answer names its row.
"""

import json
import re
from array import array
from base64 import b64decode
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.crashes.server import answer_to, text_of

__all__ = ["Job", "Line", "line_of", "lines_of", "plain_lines"]


@dataclass(frozen=True)
class Line:
    """One line of the input, the fields that the output repeats, and the error that the row has at the very end.

    Without a prompt the line is unusable.
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
    """A job in a folder of its own, on an ``AccountServer``; ``options`` are further arguments of the command.

    ``files``: the names that are in the folder at last.
    """

    ending = out_ending = ".jsonl"
    request = ("--prompt", "{text}", "--max-tokens", 4)

    def __init__(self, folder, server, commands, lines, *options):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.server = server
        self.source = folder.with_name(f"{folder.name}{self.ending}")
        self.give(lines)
        self.out = folder / f"out{self.out_ending}"
        self.part, self.place = (folder / f"{self.out.name}.{name}" for name in ("part", "journal"))
        self.files = {self.out.name, self.place.name}
        self.options = options
        self.host = ""
        self.commands = commands

    def give(self, lines):
        """Write the input, or another one."""
        self.lines = lines
        self.source.write_bytes(b"".join(line.data + b"\n" for line in lines))

    @property
    def arguments(self):
        arguments = ["map", self.source, "-o", self.out, "--base-url", self.server.base_url, "--model", "m"]
        return [*arguments, *self.request, *self.options]

    def start(self, *more, plan=None, host=""):
        """Start the command; it writes nothing into the folder but its files."""
        self.server.new_run()
        return self.start_beside(*more, plan=plan, host=host or self.host)

    def start_beside(self, *more, plan=None, host=""):
        """Start a second command, while the first is under way."""
        return self.commands.start([*self.arguments, *more], self.folder.parent, plan, host)

    def run(self, *more, plan=None):
        """Run the command to its end, whichever that is."""
        command = self.start(*more, plan=plan)
        command.wait()
        return command

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
        row.pop("health", None)
        if re.fullmatch("[0-9a-f]{16}-[0-9]+", str(row.get("id"))):
            # Made by the command for a row without one.
            del row["id"]
        return shown(row, answer, error)

    def check_whole(self, *, ordered=True, is_last=True):
        """Rule 1: the rows of the output are those of the input; at last each has its right answer."""
        assert self.out.suffix != ".jsonl" or self.out.read_bytes().endswith(b"\n")
        found = [self.outcome(row) for row in self.whole_rows()]
        wanted = [line.outcome for line in self.lines]
        if not is_last:
            found, wanted = ([json.dumps(json.loads(each)[0]) for each in rows] for rows in (found, wanted))
        missing, surplus = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        assert not missing and not surplus, f"missing {list(missing)[:5]}, too many {list(surplus)[:5]}"
        if ordered:
            assert found == wanted
        ids = [row["id"] for row in self.whole_rows() if "id" in row]
        assert len(set(ids)) == len(ids)

    # The journal -----------------------------------------------------------------------------------------------------

    def wanted(self):
        """How often each prompt is asked for."""
        return Counter(line.prompt for line in self.lines if line.prompt is not None)

    def of_last_job(self):
        """The lines of the journal; of a new job beside the one that is there, its own."""
        data = self.place.read_bytes() if self.place.exists() else b""
        return data[data.rfind(b"\n", 0, max(0, data.rfind(b'"new":true'))) + 1 :]

    def kept(self):
        """The rows of the journal."""
        return Kept.read(self.of_last_job())

    def check_kept(self):
        """Rule 4: each answer that was written is in the journal. Return what the journal has."""
        kept, lines = self.kept(), self.of_last_job()
        is_beside = b'"new":true' in lines and b'{"note":"alone"' not in lines
        for path in (self.part,) if is_beside else (self.out, self.part):
            answers = Counter(row["completion"] for row in self.whole_rows(path) if "completion" in row)
            assert answers <= kept.answers, f"not in the journal: {list(answers - kept.answers)[:5]}"
        return kept


def answer_in(fields):
    if "embedding" in fields:
        return text_of(array("f", b64decode(fields["embedding"]["vector"])))
    return fields["completion"]["choices"][0]["text"]


@dataclass
class Kept:
    """What a journal has: how often each answer, and each id of a failed row; the last value of each note."""

    answers: Counter = field(default_factory=Counter)
    failed: Counter = field(default_factory=Counter)
    may_be_tried: Counter = field(default_factory=Counter)
    notes: dict = field(default_factory=dict)

    @classmethod
    def read(cls, data):
        """What a journal has; a last line without its end is none."""
        kept, last = cls(), {}
        for line in data.split(b"\n")[:-1]:
            fields = json.loads(line)
            if "key" in fields:
                row = fields["key"], fields["n"]
                assert last.get(row, {}).get("state") != "answered", f"{row} has two answers"
                last[row] = fields
            elif "note" in fields:
                kept.notes[fields["note"]] = fields["value"]
        for fields in last.values():
            if fields["state"] == "answered":
                kept.answers[answer_in(fields)] += 1
            else:
                (kept.failed if fields["state"] == "failed" else kept.may_be_tried)[str(fields.get("id"))] += 1
        return kept

    @property
    def total(self):
        return self.answers.total() + self.failed.total() + self.may_be_tried.total()

    def answers_of(self, prompt):
        return self.answers[answer_to(prompt)]

    def failed_of(self, prompt):
        """Prompts that are refused end with the id of their row."""
        return self.failed[prompt.rpartition(" ")[2]]
