"""The output of a map by its options: the files, and what makes their bytes."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from batchclient._maps.arrow import pyarrow_for
from batchclient._maps.row_calls import RowCall
from batchclient.cli._answer_columns import values_of
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import Refusal
from batchclient.cli._rows import added_by, fields_of_row, id_and
from batchclient.jobs.forms import (
    BESIDE,
    OTHER,
    BatchLines,
    CsvRows,
    Lines,
    OutputForm,
    Vectors,
    Writer,
    form_of,
    is_packed,
)
from batchclient.jobs.inputs import ending_of
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.parquet_rows import ParquetRows, columns_of
from batchclient.jobs.source import Source

__all__ = ["added_for", "added_to_rows", "answers_in", "output_of", "writer_of"]

_OF_ROWS = ("jsonl", "csv", "parquet")
"""The forms whose rows have the fields of the input."""


def added_to_rows(options: MapOptions, form: OutputForm) -> tuple[str, ...]:
    """Return the names of the fields that the output adds to the input's."""
    if form not in _OF_ROWS:
        return ()
    added = (*answers_in(options), *added_by(options.call, options.params, options.answer_field))
    return (
        added
        if form == "jsonl"
        else (*added, OTHER if options.answer_field is None else f"{options.answer_field}_{OTHER}")
    )


def answers_in(options: MapOptions) -> tuple[str, ...]:
    """Return the names of the fields that have the properties of an answer."""
    start = options.answer_field
    return tuple(name if start is None else f"{start}_{name}" for name in options.answer_kinds)


def added_for(options: MapOptions, made: RowCall) -> Collection[str]:
    """Return the fields that an output of a known form adds to a row for a call of its own."""
    if options.output_form not in _OF_ROWS or not (made.own or made.call != options.call):
        return ()
    added = added_by(made.call, made.params, options.answer_field)
    return added if options.kept_columns is None else [name for name in added if name in options.kept_columns]


def output_of(options: MapOptions, source: Source) -> tuple[MapOptions, Output]:
    """Return the options with the form of the output, and the output.

    Args:
        options: of the job.
        source: the input, which must be another file. Without a template its first row tells
            whether it is lines of OpenAI's Batch form.

    Raises:
        Refusal, ConfigError: the output cannot be.
    """
    form = form_of(options.output, options.output_form)
    if form == "jsonl" and options.output_form is None and not options.prompt and _is_batch(source):
        form = "batch"
    packed = is_packed(options.output)
    output = Output(options.output, source=source.status, beside=BESIDE.get(form, ""), packed=packed)
    files = [] if options.output == "-" else [options.output, f"{options.output}{BESIDE.get(form, '')}"]
    for name in (*files, *filter(None, [options.journal])):
        if source.reads(name):
            raise Refusal(f"{name}: {source.name} would have this file, too; rows would be read again")
    if form not in _OF_ROWS:
        named: dict[str, object] = {"--columns": options.kept_columns, "--answer-field": options.answer_field}
        named["--answer-columns"] = options.answer_columns or None
        option = next((name for name, value in named.items() if value is not None), None)
        if option is not None:
            raise Refusal(f"{option}: --output-form {form} has no fields of the input")
    if form == "npy" and not output.is_file:
        raise Refusal("--output-form npy: the file begins with the number of its rows; give -o FILE")
    if form == "npy" and options.call != "embed":
        raise Refusal("--output-form npy is for --call embed: it holds vectors alone")
    if form == "parquet":
        pyarrow_for("--output-form parquet")
    return options.but(output_form=form), output


def _is_batch(source: Source) -> bool:
    try:
        first = source.first()
    except OSError as error:
        raise Refusal(f"{source.name}: {reason_of(error)}") from None
    return first is not None and "url" in first and isinstance(first.get("body"), dict)


def writer_of(options: MapOptions, source: Source) -> Writer:
    """Return what makes the output's bytes, from the options of ``output_of``.

    Raises:
        OSError: the input cannot be read.
    """
    form = options.output_form
    assert form is not None
    if form == "batch":
        return BatchLines(fields_of_row, options.client["model"])
    if form == "npy":
        return Vectors(partial(fields_of_row, raw=True))
    answers = dict(zip(answers_in(options), options.answer_kinds.items(), strict=True))
    values = partial(values_of, columns=answers, form=form) if answers else None
    fields = partial(fields_of_row, columns=options.kept_columns, answer_field=options.answer_field, values=values)
    if form == "jsonl":
        return Lines(fields)
    *names, other = added_to_rows(options, form)
    added = dict(zip(names[len(answers) :], added_by(options.call, options.params), strict=True))
    is_typed = form == "parquet"
    if options.file.get("shard") and (source.stamp is not None or "://" in options.source):
        # All shards have the columns that the first rows of the whole tell.
        with Source(options.source, **{**options.file, "shard": None}) as whole:
            whole.first()
            types, schema = columns_of(whole, is_typed=is_typed), whole.schema
    else:
        types, schema = columns_of(source, is_typed=is_typed), source.schema
    if options.kept_columns is not None:
        types = {name: types[name] for name in id_and(options.kept_columns) if name in types}
    types = {name: kind for name, kind in types.items() if name not in (*names, other)}
    types.setdefault("id", None)
    fields = partial(fields, other=other, raw=is_typed)
    if form == "csv":
        delimiter = "\t" if ending_of(options.output) in (".tsv", ".tab") else ","
        return CsvRows(fields, [*types, *names, other], delimiter)
    of_answers = {name: kind for name, (_, kind) in answers.items()}
    return ParquetRows(fields, types, added, other, schema, answers=of_answers)
