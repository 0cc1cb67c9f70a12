"""Kills of jobs whose input and output are not JSON lines of fields: SLOW=1 is 20 for each form."""

import json
from random import Random

import numpy
import pyarrow
import pyarrow.parquet as parquet
import pytest
from tests.crashes import calls
from tests.crashes.jobs import Job, Line, line_of, lines_of, plain_lines
from tests.crashes.server import text_of
from tests.crashes.watch import IS_LONG, Watch, long_form

KILLS, ROWS, LONGEST_S = (20, 2000, 1.5) if IS_LONG else (2, 100, 0.15)
OPTIONS = ("--max-batch-size", "4", "--concurrency", "16")


class TableJob(Job):
    """Parquet in, Parquet out: rows of the output are those of JSON lines."""

    ending = out_ending = ".parquet"

    def give(self, lines):
        # A table has no line that is no row, and one type for all ids.
        self.lines = [line for line in lines if line.prompt is not None]
        parquet.write_table(pyarrow.Table.from_pylist([line.row for line in self.lines]), self.source)

    def whole_rows(self, path=None):
        path = path or self.out
        if path == self.part or not path.exists():  # a table without its end cannot be read
            return []
        return [self.row(fields) for fields in parquet.read_table(path).to_pylist()]

    def row(self, fields):
        fields = {name: value for name, value in fields.items() if value is not None}
        return fields | json.loads(fields.pop("other_fields", "{}"))


class BatchJob(Job):
    """A Batch file in, Batch form out, with ``OUT.errors``."""

    request = ()

    def __init__(self, folder, *rest):
        super().__init__(folder, *rest)
        self.errors = folder / "out.jsonl.errors"
        self.files.add(self.errors.name)

    def give(self, lines):
        super().give([self.request_of(line, number) for number, line in enumerate(lines)])

    def request_of(self, line, number):
        """A line with the request; some have the ``custom_id`` of an earlier one."""
        if line.prompt is None:
            return Line(line.data, {}, None, line.error)
        own = {"custom_id": "0" if line.prompt.startswith("text") and number % 8 == 0 else str(number)}
        body = {"model": "m", "prompt": line.prompt, "max_tokens": 4}
        data = own | {"method": "POST", "url": "/v1/completions", "body": body}
        return Line(json.dumps(data).encode(), own, line.prompt, line.error)

    def whole_rows(self, path=None):
        return [self.row(fields) for fields in super().whole_rows(path)]

    def row(self, fields):
        own = {"custom_id": fields["custom_id"]} if fields["custom_id"] else {}
        reply, error = fields["response"], fields["error"]
        if error is None and reply["status_code"] == 200:
            return own | {"completion": reply["body"]["choices"][0]["text"]}
        return own | {"error": {"type": (error or {}).get("code") or reply["body"]["error"]["type"]}}

    def check_whole(self, *, ordered=True, is_last=True):
        super().check_whole(ordered=ordered, is_last=is_last)
        lines = self.out.read_bytes().splitlines(keepends=True)
        failed = [line for line, row in zip(lines, self.whole_rows(), strict=True) if "error" in row]
        assert self.errors.read_bytes() == b"".join(failed)


class VectorJob(Job):
    """Embeddings as ``.npy``, with ``OUT.ids``."""

    out_ending = ".npy"
    request = ("--prompt", "{text}", "--call", "embed")

    def __init__(self, folder, *rest):
        super().__init__(folder, *rest)
        self.ids = folder / "out.npy.ids"
        self.files.add(self.ids.name)

    def whole_rows(self, path=None):
        path = path or self.out
        if path == self.part or not path.exists():
            return []
        rows = zip(super().whole_rows(self.ids), numpy.load(path), strict=True)
        return [row | ({} if numpy.isnan(vector[0]) else {"completion": text_of(vector)}) for row, vector in rows]

    def give(self, lines):
        # Of a row's fields there is only the id.
        of_ids = [{name: value for name, value in line.row.items() if name != "text"} for line in lines]
        super().give([Line(line.data, row, line.prompt, line.error) for line, row in zip(lines, of_ids, strict=True)])


FORMS = pytest.mark.parametrize("kind", [TableJob, BatchJob, VectorJob])


@FORMS
def test_kills_at_random_times(make_job, server, kind):
    server.pause_s = 0.01
    random = Random(kind.__name__)
    kills = 0
    while kills < KILLS:
        watch = Watch(make_job(lines_of(ROWS, seed=kills), *OPTIONS, kind=kind))
        while kills < KILLS and watch.run(kill_after_s=random.uniform(0.05, LONGEST_S)).status < 0:
            kills += 1
        assert watch.finish() == 1, "some rows failed for good"


@pytest.mark.parametrize("kind", [BatchJob, VectorJob])
def test_a_kill_between_the_two_renames(planned, make_job, server, kind):
    """``OUT`` is as it was, and the same command puts both files in their places."""
    lines = plain_lines(8)
    lines[3] = line_of({"id": 3, "text": "later 3"})
    watch = Watch(make_job(lines, *OPTIONS, "--max-batch-size", "1", kind=kind))
    assert watch.run().status == 1
    was = watch.out
    second = f"out{kind.out_ending}.{'errors' if kind is BatchJob else 'ids'}"
    plan = calls.Plan(str(watch.job.folder), name=second, kinds=calls.NAME, first=1, last=1, how="after")
    assert watch.run(plan=plan).status == -9
    assert watch.out == was
    assert watch.finish() == 0


@long_form
def test_memory_does_not_grow_with_the_rows_of_a_table(make_job):
    peaks_kb = []
    for count in (20_000, 120_000):
        # Long enough that the smaller one has several row groups, too.
        job = make_job([line_of({"id": n, "text": f"{n} {'x' * 400}"}) for n in range(count)], kind=TableJob)
        peaks_kb.append(job.run().peak_kb)
        assert len(job.whole_rows()) == count
    assert peaks_kb[1] < peaks_kb[0] + 20_000, peaks_kb
