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
)
