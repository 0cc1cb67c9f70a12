"""Files of rows: what is read, and that no row is lost, doubled or asked with a gap."""

from tests.mutants.protection import Protection

__all__ = ["JOBS"]

JOBS = (
    Protection(
        "a part ends at the end of a line",
        "batchclient.jobs.shards",
        "range_of",
        "_line_from(file, size, size * (part + 1) // parts)",
        "size * (part + 1) // parts",
        "tests/jobs/test_shards.py::test_ranges_are_the_file_in_order",
    ),
    Protection(
        "a part of CSV goes by the number of the row, unusable ones too",
        "batchclient.jobs.csv_rows",
        "CsvRows._is_kept",
        "self._rows + 1",
        "self._rows",
        "tests/jobs/test_csv.py::test_rows_are_chosen_by_their_number_and_their_bytes",
    ),
    Protection(
        "text after a closing quote is a fault",
        "batchclient.jobs.csv_rows",
        "CsvRows._read",
        'csv.reader(StringIO(text + "\\n", newline="\\n"), strict=True)',
        'csv.reader(StringIO(text + "\\n", newline="\\n"))',
        "tests/jobs/test_csv.py::test_a_record_that_is_no_row_says_why_and_stops_nothing",
    ),
    Protection(
        "an empty field of CSV is a missing value",
        "batchclient.jobs.csv_rows",
        "CsvRows._read",
        "field or None",
        "field",
        "tests/jobs/test_csv.py::test_an_empty_field_is_a_missing_value",
    ),
    Protection(
        "a record without an end does not fill the memory",
        "batchclient.jobs.csv_rows",
        "CsvRows._read",
        "size > LONGEST_LINE_BYTES",
        "False",
        "tests/jobs/test_csv.py::test_a_field_of_megabytes_is_a_value_and_one_without_an_end_does_not_fill_the_memory",
    ),
    Protection(
        "an unusable row fails where a field is asked for",
        "batchclient.jobs.rows",
        "FaultyRow.__contains__",
        "raise BadRow(self.fault)",
        "return False",
        "tests/jobs/test_read_rows.py::test_a_map_yields_an_unusable_row_with_its_reason",
    ),
    Protection(
        "shards do not write one file",
        "batchclient.cli._refusal",
        "output_from",
        "shard[1] > 1",
        "False",
        "tests/cli/test_map_rows.py::test_wrong_usage_is_refused_before_anything_happens",
    ),
    Protection(
        "a file that has grown between the readings of --dedupe loses no row",
        "batchclient.cli._repeats",
        "Repeats.prompt_of",
        "self._asked.discard(key)",
        "pass",
        "tests/cli/test_map_rows.py::test_rows_that_came_after_the_first_reading_are_asked_anew",
    ),
    Protection(
        "a job stops at --max-cost",
        "batchclient.cli._cost",
        "Cost.is_reached",
        "cost >= self.most",
        "False",
        "tests/cli/test_cost.py::test_time_alone_reaches_the_cost",
    ),
    Protection(
        "the deadline of a row that is asked again is the row's own",
        "batchclient._core.requests",
        "Request.anew",
        "self.deadline",
        "None",
        "tests/shell/test_retry_invalid.py::test_the_deadline_is_of_the_row_and_not_of_each_asking",
    ),
    Protection(
        "a map that is left asks nothing again",
        "batchclient.maps",
        "Map._submit",
        "runner is not None and row.request is request and not self._closed",
        "runner is not None",
        "tests/shell/test_retry_invalid.py::test_a_map_that_is_left_asks_nothing_again",
    ),
    Protection(
        "a schema's references lead to no other file",
        "batchclient.cli._schema",
        "schema_from",
        'not reference.startswith("#")',
        "False",
        "tests/cli/test_schema.py::test_a_schema_that_cannot_be_followed_is_refused",
    ),
)
