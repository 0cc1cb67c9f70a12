"""The call of a row: by a template, or the row's own request; and the first row, which it must fit.

Rules:
- A template that does not fit the first row is refused: it would fail a million times over. So is a
  form that the first row has not, and a parameter there that nobody has said to take or to ignore.
- The text of ``--system`` is sent as it stands. The template alone has fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from batchclient._calls.tables import kind_of, listed, missing
from batchclient._maps.row_calls import RowCall, RowCalls, RowForm, RowParams
from batchclient.cli._refusal import Refusal, in_options
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow, Row
from batchclient.jobs.csv_rows import delimiter_hint
from batchclient.jobs.media import Media
from batchclient.jobs.output import reason_of
from batchclient.jobs.source import Source
from batchclient.templates import fields_of, make_prompt, value_of

__all__ = ["Prompts", "check_columns", "template_from"]

_LONGEST_TEMPLATE_BYTES = 1024 * 1024
_MISSING = object()
_TABLES = ("csv", "parquet", "arrow")


def template_from(prompt: str | None, prompt_file: str | None) -> str | None:
    """Return the template, from the option or from a file; ``None``: there is none.

    Of a file the last line end is left out: editors put one there.

    Raises:
        Refusal: there are two, or the file cannot be read.
    """
    if prompt_file is None:
        return prompt
    if prompt is not None:
        raise Refusal("--prompt-file: give it or --prompt, not both")
    try:
        with Path(prompt_file).open("rb") as file:
            read = file.read(_LONGEST_TEMPLATE_BYTES + 1)
    except OSError as error:
        raise Refusal(f"--prompt-file: {prompt_file}: {reason_of(error)}") from None
    if len(read) > _LONGEST_TEMPLATE_BYTES:
        raise Refusal(f"--prompt-file: {prompt_file} is longer than {_LONGEST_TEMPLATE_BYTES >> 20} MiB")
    try:
        text = read.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"--prompt-file: {prompt_file} is not UTF-8 (byte {error.start + 1} of it)") from None
    return text.removesuffix("\n").removesuffix("\r")


class Prompts:
    """Makes the calls of rows.

    Args:
        template: with the names of fields; ``None``: the rows are requests themselves.
        call: the call made for each row that names none.
        system: the text of a system message, if there is one.
        form: of the rows; ``None``: the first row tells it.
        row_params: whether fields with a parameter's name are parameters.
        has_model: whether rows without a model have one.
        media: adds the pictures and sounds of rows; a template may then have no field.
        documents: the field that has a row's document, or several; the template makes the query.
        top_n: how many of them are wanted; ``None``: all.
        data: fields that are no parameters, beside those.

    Attributes:
        names: of the template's fields, and of that of the documents.
        model: the first row's own, where each row has to have one.

    Raises:
        Refusal: there is a system message, and the call is no chat.
        ConfigError: the template is wrong.
    """

    def __init__(
        self,
        template: str | None,
        call: str,
        system: str | None = None,
        *,
        form: RowForm | None = None,
        row_params: RowParams | None = None,
        has_model: bool = True,
        media: Media | None = None,
        documents: str | None = None,
        top_n: int | None = None,
        data: Collection[str] = (),
    ) -> None:
        if system is not None and call != "chat" and (template is not None or call != "complete"):
            raise Refusal("--system is for --call chat")
        self.names = [] if template is None else fields_of(template)
        fill: Callable[[Row], Any] | None = None
        if template is not None and media is not None and not self.names:
            text = template.format()
            fill = lambda _: text  # noqa: E731
        elif template is not None:
            fill = make_prompt(template, is_chat=call == "chat")
        self._fill = fill
        if fill is not None and "" in self.names:
            # Text lines are rows with a field ``text``; ``{}`` is the line itself.
            self._fill = lambda row: fill(row["text"])
        if documents is not None:
            query, self.names = self._fill, [*self.names, documents]
            assert query is not None, "there is a template"
            self._fill = lambda row: (query(row), self._documents_of(row, documents), top_n)
        self._documents = documents
        self._media = media
        self._system = system
        self._settings: dict[str, Any] = {
            "form": form, "call": call, "template": self._fill, "named": [*self.names, *data], "row_params": row_params,
        }  # fmt: skip
        self._calls = RowCalls(**self._settings)
        self.model: str | None = None
        self._has_model = has_model

    def __repr__(self) -> str:
        return f"<Prompts of {', '.join(self.names)}>"

    @property
    def takes_fields(self) -> bool:
        """Whether fields of a row beside its input are of its call. Else they are data."""
        return self._fill is None and self._settings["row_params"] != "ignore"

    def read(self, row: Row) -> RowCall:
        """Return the call of a row.

        Raises:
            ConfigError, BadRow: there is none.
        """
        return self._read(row, None if self._media is None else self._media.add)

    def sketch(self, row: Row) -> RowCall:
        """Do as ``read``, and open no file that the row names."""
        return self._read(row, None if self._media is None else self._media.name)

    def _read(self, row: Row, add: Callable[[Any, Row], list[Any]] | None) -> RowCall:
        made = self._calls.read(row)
        if self.model is not None and made.model is None:
            raise BadRow(f"{row.where} names no model, and the first row does: --model is for such rows")
        if add is not None:
            if made.call != "chat":
                raise BadRow(f"--image and --audio: {row.where} is no chat")
            made = made._replace(item=add(made.item, row))
        return made if self._system is None else made._replace(item=self._with_system(made, row))

    def check_first(self, first: Row, source: Source) -> str:
        """Settle the form of all rows by the first one; return what is to be said of it, if anything.

        Raises:
            Refusal: the row cannot be used, or has not what the template or the form needs, or has
                parameters of its own.
        """
        if first.fault is not None:
            raise Refusal(f"{source.name}: {first.fault}")
        where = f"{source.name}, line {first.line}"
        if "" in self.names and source.form != "text":
            what = f"{source.name} is {source.form}; it has {_fields(first, source)}"
            raise Refusal(f"--prompt: {{}} stands for a text line, and {what}")
        values = {name: _value(first, name) for name in self.names if name}
        for name, value in values.items():
            if value is _MISSING:
                what = f"and the first row ({where}) has no such field; it has {_fields(first, source)}"
            elif isinstance(value, bytes):
                what = f"and in the first row ({where}) it is bytes, not a text"
            else:
                continue
            option = "--documents" if name == self._documents else "--prompt"
            raise Refusal(f"{option} names {{{name}}}, {what}")
        if source.form in _TABLES:
            # Columns are data, until somebody says otherwise.
            self._settings |= {"is_table": True, "row_params": self._settings["row_params"] or "ignore"}
        self._calls = RowCalls(**self._settings)
        documents = self._documents
        if any(missing(value) for value in values.values()) or (
            documents is not None and self._fault_of_documents(self._documents_in(first, documents), documents)
        ):
            # The row's own fault: another one may be in order.
            return ""
        try:
            told = self._calls.settle(first)
            made = self.read(first)
        except BadRow as error:  # which names the row
            raise Refusal(in_options(str(error))) from None
        except ConfigError as error:
            option = "--prompt: " if self._fill is None and self._calls.form is None else ""
            raise Refusal(in_options(f"{option}the first row ({where}): {error.message}")) from None
        self.model = None if self._has_model else made.model
        return in_options(told) if self._fill is None or ";" in told else ""

    def _documents_of(self, row: Row, name: str) -> Any:
        """Return a row's document, or a list of them, which may be JSON in a table.

        Raises:
            ConfigError: there is none.
        """
        value = self._documents_in(row, name)
        if value is _MISSING or missing(value):
            told = "missing" if value is _MISSING else missing(value)
            raise ConfigError(f"the document's field {name!r} is {told}", field=name)
        if fault := self._fault_of_documents(value, name):
            raise ConfigError(fault, field=name)
        return value

    def _documents_in(self, row: Row, name: str) -> Any:
        value = listed(_value(row, name))
        if "is_table" in self._settings and isinstance(value, str) and value.lstrip().startswith("["):
            with suppress(ValueError, RecursionError):
                return json.loads(value)
        return value

    def _fault_of_documents(self, value: Any, name: str) -> str:
        """Tell why a field has no documents to be ranked or scored; empty: it has some."""
        if isinstance(value, (list, tuple)):
            for place, each in enumerate(value):
                if not isinstance(each, str):
                    return f"document {place} of {name!r} is {kind_of(each)}, not a text"
            return "" if value else f"{name!r} is a list of texts, not an empty list"
        may_be_one = self._settings["call"] == "score"
        if may_be_one and isinstance(value, str):
            return ""
        return f"{name!r} is {'a text or ' if may_be_one else ''}a list of texts, not {kind_of(value)}"

    def _with_system(self, made: RowCall, row: Row) -> list[Any]:
        if made.call != "chat":
            raise BadRow(f"--system: {row.where} is no chat")
        if any(isinstance(each, Mapping) and each.get("role") in ("system", "developer") for each in made.item):
            raise BadRow(f"--system: {row.where} has a system message of its own")
        return [{"role": "system", "content": self._system}, *made.item]


def check_columns(columns: Sequence[str], first: Row, source: Source, option: str = "--columns") -> None:
    """Refuse columns that the first row lacks, and an option names.

    Raises:
        Refusal: there is no such field.
    """
    missing = [name for name in columns if name not in first]
    if missing:
        where = f"{source.name}, line {first.line}"
        known = _fields(first, source)
        raise Refusal(f"{option}: the first row ({where}) has no field {missing[0]!r:.60}; it has {known}")


def _value(row: Row, name: str) -> Any:
    try:
        return value_of(row, name)
    except KeyError:
        return _MISSING


def _fields(row: Row, source: Source) -> str:
    """Return the fields of the first row that a template can name, and what may be wrong with them."""
    names = [name for name in source.names or row if not set(name) & set('{}!"\r\n')]
    hint = delimiter_hint(names, "--delimiter") if source.form == "csv" else ""
    return (", ".join(f"{{{name}}}" for name in names)[:200] or "no field at all") + hint
