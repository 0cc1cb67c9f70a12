"""A CSV file of 5,000 oddly quoted rows: killed twice, gone on with by the same command."""

import csv
import io
from random import Random

import pytest
from tests.crashes.forms import long_form
from tests.crashes.jobs import Line
from tests.crashes.watch import Watch

ROWS = 5000
PIECES = ["plain", "a, b", 'he said "no"', "two\nlines", "two\r\nlines", "naïve 漢字 🎈", ";", "\t", "'", '""', ", "]


def field(random):
    return "".join(random.choice(PIECES) for _ in range(random.randrange(1, 4)))


def table(seed):
    """A CSV file with a byte order mark, and its lines."""
    random, text, lines = Random(seed), io.StringIO(newline=""), []
    header = ["id", "note, with a comma", "text"]
    csv.writer(text).writerow(header)
    for number in range(ROWS):
        note = field(random) if random.random() < 0.9 else ""
        # Some rows have one prompt.
        values = [f"row-{number}", note, f"{field(random)} {number % 1000}"]
        quoting = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        csv.writer(text, lineterminator=random.choice(["\r\n", "\n"]), quoting=quoting).writerow(values)
        # An empty field is a missing value.
        row = dict(zip(header, [value or None for value in values], strict=True))
        lines.append(Line(b"", row, values[2]))
    return text.getvalue().encode("utf-8-sig"), lines


@pytest.mark.parametrize("order", [[], pytest.param(["--unordered"], marks=long_form)], ids=["ordered", "unordered"])
def test_csv_killed_twice(make_job, server, order):
    data, lines = table(3)
    job = make_job(lines, *order, data=data, form="csv")
    watch = Watch(job)
    for share in (0.3, 0.4):
        command = job.start()
        server.wait_for(lambda run: len(run.answered) >= share * ROWS)
        assert command.kill() == -9
        watch.check(command)
    assert watch.run().status == 0
    assert watch.finish(ordered=not order) == 0
