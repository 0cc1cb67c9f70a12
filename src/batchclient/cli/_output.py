"""The output of a map by its options: the files, and what makes their bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

from batchclient._maps.arrow import pyarrow_for
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import Refusal
from batchclient.cli._rows import added_by, fields_of_row
from batchclient.jobs.forms import BESIDE, OTHER, BatchLines, CsvRows, Lines, OutputForm, Vectors, Writer, form_of
from batchclient.jobs.output import Output
from batchclient.jobs.source import Source

__all__ = ["added_to_rows", "output_of", "writer_of"]

_OF_ROWS = ("jsonl", "csv", "parquet")
"""The forms whose rows have the fields of the input."""


def added_to_rows(options: MapOptions, form: OutputForm) -> tuple[str, ...]:
    """Return the names of the fields that the output adds to the input's."""
    if form not in _OF_ROWS:
        return ()
    added = added_by(options.call, options.params, options.answer_field)
    return (
        added
        if form == "jsonl"
        else (*added, OTHER if options.answer_field is None else f"{options.answer_field}_{OTHER}")
    )


def output_of(options: MapOptions, source: Source | None = None, *, is_batch: bool = False) -> Output:
    """Return the output, with the second file that its form has.

    Args:
        options: of the job.
        source: the input, which must be another file.
        is_batch: whether the input is lines of OpenAI's Batch form.

    Raises:
        Refusal, ConfigError: the output cannot be.
    """
    form = form_of(options.output, options.output_form, is_batch=is_batch)
    beside = BESIDE.get(form, "")
    output = Output(options.output, source=None if source is None else source.status, beside=beside)
    if form not in _OF_ROWS:
        named = {"--columns": options.columns, "--answer-field": options.answer_field}
        option = next((name for name, value in named.items() if value is not None), None)
        if option is not None:
            raise Refusal(f"{option}: --output-form {form} has no fields of the input")
    if form == "npy" and not output.is_file:
        raise Refusal("--output-form npy: the file begins with the number of its rows; give -o FILE")
    if form == "npy" and options.call != "embed":
        raise Refusal("--output-form npy is for --call embed: it holds vectors alone")
    if form == "parquet":
        pyarrow_for("--output-form parquet")
    return output


def writer_of(options: MapOptions, source: Source, *, is_batch: bool = False) -> Writer:
    """Return what makes the output's bytes. The first rows of the input have been read.

    Raises:
        OSError: the input cannot be read.
    """
    form = form_of(options.output, options.output_form, is_batch=is_batch)
    if form == "batch":
        return BatchLines(fields_of_row, options.client["model"])
    if form == "npy":
        return Vectors(partial(fields_of_row, raw=True))
    fields = partial(fields_of_row, columns=options.columns, answer_field=options.answer_field, raw=form == "parquet")
    if form == "jsonl":
        return Lines(fields)
    *names, other = added_to_rows(options, form)
    added = dict(zip(names, added_by(options.call, options.params), strict=True))
    types = _types(options, source, is_typed=form == "parquet")
    columns = {name: kind for name, kind in types.items() if name not in added and name != other}
    if form == "csv":
        delimiter = "\t" if options.output.lower().endswith((".tsv", ".tab")) else ","
        return CsvRows(fields, [*columns, *added, other], delimiter)
    from batchclient.jobs.parquet_rows import ParquetRows

    return ParquetRows(fields, columns, added, other)


def _types(options: MapOptions, source: Source, *, is_typed: bool) -> dict[str, Any]:
    """Return the input's columns that the output has, with ``id``; and their types, if they have any."""
    rows = source.ahead()
    types: dict[str, Any] = {name: None for row in rows for name in row}
    if source.schema is not None:
        from batchclient.jobs.parquet_rows import types_of_schema

        types = types_of_schema(source.schema)
    elif is_typed:
        from batchclient.jobs.parquet_rows import types_of_rows

        as_texts = source.form in ("csv", "text")
        types = types_of_rows([dict.fromkeys(row, "") for row in rows] if as_texts else rows)
    kept = {name for name in types if options.columns is None or name in options.columns or name == "id"}
    id_type = pyarrow_for("Parquet").string() if is_typed else None
    return {name: kind for name, kind in types.items() if name in kept} | ({} if "id" in kept else {"id": id_type})
