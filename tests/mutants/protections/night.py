"""A night's job: each row once in the output, whatever ends the process, and nothing of others touched."""

from tests.mutants.protection import Protection

__all__ = ["NIGHT"]

_RESUME = "tests/cli/test_map_resume.py::"
_MARKS = "tests/jobs/test_marks.py::"

NIGHT = (
    Protection(
        "no mark is made while a resume passes rows",
        "batchclient.cli._durable",
        "Durable.mark",
        "(self._is_marking and not is_last) or not self._output.is_named or self._journal.skips",
        "(self._is_marking and not is_last) or not self._output.is_named",
        f"{_RESUME}test_each_mark_tells_the_rows_that_are_before_it",
    ),
    Protection(
        "a torn row is cut off",
        "batchclient.jobs.output",
        "Output._open_at",
        "os.ftruncate(file, at)",
        "pass",
        f"{_MARKS}test_a_plan_tells_the_output",
    ),
    Protection(
        "rows before the mark are compared with the input",
        "batchclient.journal.of_file",
        "FileJournal.skip",
        "not self.skips and self.coverage.digest != self._covered.digest",
        "False",
        f"{_RESUME}test_the_input_may_change_and_unchanged_rows_are_reused",
    ),
    Protection(
        "an input that has become shorter is noticed",
        "batchclient.maps",
        "Map._skip_slice",
        "self.source_error is None",
        "False",
        f"{_RESUME}test_each_mark_tells_the_rows_that_are_before_it",
    ),
    Protection(
        "fields outside the prompt count",
        "batchclient.journal.of_file",
        "Coverage.add",
        'zlib.crc32(repr(document).encode("utf-8", "surrogatepass"))',
        "0",
        f"{_RESUME}test_a_field_outside_the_prompt_may_change",
    ),
    Protection(
        "an output that was changed is left alone",
        "batchclient.jobs.marks",
        "Mark.check",
        "found.hexdigest() != self.sha256",
        "False",
        f"{_MARKS}test_a_file_that_is_another_is_refused",
    ),
    Protection(
        "a file without a marked row is known by its inode",
        "batchclient.jobs.marks",
        "Mark.check",
        "not self.size and status.st_size and status.st_ino != self.inode",
        "False",
        f"{_MARKS}test_a_file_without_a_marked_row_is_known_by_its_inode",
    ),
    Protection(
        "a part that was renamed is the output",
        "batchclient.jobs.plan",
        "plan_of",
        "mark.replaces and not where.exists()",
        "False",
        f"{_MARKS}test_a_part_that_was_renamed_is_the_output",
    ),
    Protection(
        "failed rows that run again are not covered",
        "batchclient.cli._durable",
        "Durable._runs_again",
        'state.may_be_tried if self._kept.retry_failed != "none" else 0',
        "0",
        f"{_RESUME}test_failed_rows_run_again_as_asked",
    ),
    Protection(
        "damaged rows are looked for",
        "batchclient.cli._durable",
        "Durable._runs_again",
        "bool(retried or state.damaged)",
        "bool(retried)",
        f"{_RESUME}test_one_damaged_row_runs_again_alone",
    ),
    Protection(
        "an unfinished job is not begun anew in silence",
        "batchclient.cli._durable",
        "Durable._look",
        "not self.folder.is_finished",
        "False",
        f"{_RESUME}test_a_job_that_is_there_is_never_begun_anew_in_silence",
    ),
    Protection(
        "a row that makes no request has a record, and fails for good",
        "batchclient.journal.records",
        "record_of",
        "unusable is not None or _is_final(error)",
        "_is_final(error)",
        f"{_RESUME}test_unusable_rows_are_in_the_output_once",
    ),
    Protection(
        "no query of a URL is on the disk",
        "batchclient.cli._map_options",
        "MapOptions.for_file",
        "shown(url)",
        "url",
        f"{_RESUME}test_no_key_no_header_and_no_query_is_on_the_disk",
    ),
    Protection(
        "rows that are all refused are not written",
        "batchclient.cli._refused",
        "Refused.end",
        "self._held and (self.kind or (refusals and refusals <= _OF_THE_COMMAND))",
        "False",
        "tests/cli/test_map.py::test_the_key_is_sent_and_never_shown",
    ),
)
