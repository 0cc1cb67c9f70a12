"""The output of a map by its options: the files, and what makes their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from batchclient._maps.arrow import pyarrow_for
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

__all__ = ["added_to_rows", "answers_in", "named", "output_of", "writer_of"]

_OF_ROWS = ("jsonl", "csv", "parquet")
"""The forms whose rows have the fields of the input."""


def added_to_rows(options: MapOptions, form: OutputForm) -> tuple[str, ...]:
    """Return the names of the fields that the output adds to the input's."""
    if form not in _OF_ROWS:
        return ()
    added = added_by(options.call, options.params, is_table=form != "jsonl")
    return (*answers_in(options), *options.names.of(added if form == "jsonl" else (*added, OTHER)).values())


def answers_in(options: MapOptions) -> tuple[str, ...]:
    """Return the names of the fields that have the properties of an answer."""
    start, names = options.answer_field, options.names
    return tuple(names.free(name if start is None else f"{start}_{name}") for name in options.answer_kinds)


def named(options: MapOptions, source: Source) -> MapOptions:
    """Return the options with the names of what the output adds: none is that of a field of the input.

    Raises:
        Refusal: the input has the other name, too.
        OSError: the input cannot be read.
    """
    form = form_of(options.output, options.output_form)
    with _of_all_shards(options, source) as whole:
        seen = {*whole.names, *(name for row in whole.ahead() for name in row)}
    kept = seen if options.kept_columns is None else seen.intersection(options.kept_columns)
    taken = kept.intersection(added_to_rows(options, form))
    named = options.but(names=replace(options.names, taken=frozenset(taken)))
    twice = next((name for name in sorted(taken) if options.names.free(name, taken) in kept), None)
    if twice is not None:
        raise Refusal(f"{source.name} has the fields {twice!r} and 'answer_{twice}': give --answer-field")
    return named


@contextmanager
def _of_all_shards(options: MapOptions, source: Source) -> Iterator[Source]:
    """Open the input whose first rows tell the columns: of a shard the whole, for all have the same."""
    if not options.file.get("shard") or (source.stamp is None and "://" not in options.source):
        yield source
        return
    with Source(options.source, **{**options.file, "shard": None}) as whole:
        whole.first()
        yield whole


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
    # These forms have none of the input's fields but the id.
    bare = partial(fields_of_row, columns=(), names=options.names, raw=True)
    if form == "batch":
        has_health = options.names.taken is not None
        return BatchLines(bare, options.client["model"], options.id, has_health=has_health)
    if form == "npy":
        return Vectors(bare, options.id or "id")
    answers = dict(zip(answers_in(options), options.answer_kinds.items(), strict=True))
    values = partial(values_of, columns=answers, form=form) if answers else None
    fields = partial(fields_of_row, columns=options.kept_columns, names=options.names, values=values)
    if form == "jsonl":
        return Lines(fields)
    *names, other = added_to_rows(options, form)
    added = {
        name: known for known, name in options.names.of(added_by(options.call, options.params, is_table=True)).items()
    }
    is_typed = form == "parquet"
    with _of_all_shards(options, source) as whole:
        types, schema = columns_of(whole, is_typed=is_typed), whole.schema
    if options.kept_columns is not None:
        types = {name: types[name] for name in id_and(options.kept_columns, options.id) if name in types}
    types = {name: kind for name, kind in types.items() if name not in (*names, other)}
    if options.id is None:
        types.setdefault("id", None)
    fields = partial(fields, other=other, raw=is_typed)
    if form == "csv":
        delimiter = "\t" if ending_of(options.output) in (".tsv", ".tab") else ","
        return CsvRows(fields, [*types, *names, other], delimiter)
    of_answers = {name: kind for name, (_, kind) in answers.items()}
    return ParquetRows(fields, types, added, other, schema, answers=of_answers)
