"""The prompt of a row: a template, for a chat with a system message, and the row that it must fit.

Rules:
- A template that does not fit the first row is refused: it would fail a million times over.
- The text of ``--system`` is sent as it stands. The template alone has fields.
- Texts and numbers enter a template as they stand; ``true``, lists and objects enter as JSON. A
  conversation enters none: it is a chat's prompt, or a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from batchclient._maps.fields import plain
from batchclient.cli._refusal import Refusal
from batchclient.jobs import BadRow, Row
from batchclient.jobs.csv_rows import delimiter_hint
from batchclient.jobs.output import reason_of
from batchclient.jobs.source import Source
from batchclient.templates import fields_of, make_prompt, value_of

__all__ = ["Prompts", "check_columns", "template_from"]

_LONGEST_TEMPLATE_BYTES = 1024 * 1024
_MISSING = object()
_CONVERSATIONS_GO = "goes with --call chat and a template of that field alone"


def template_from(prompt: str | None, prompt_file: str | None) -> str:
    """Return the template, from the option or from a file.

    Of a file the last line end is left out: editors put one there.

    Raises:
        Refusal: there is none, there are two, or the file cannot be read.
    """
    if prompt_file is None:
        if prompt is None:
            raise Refusal("--prompt is missing; give a template such as 'Summarise: {text}', or --prompt-file")
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
    """Makes the prompts of rows.

    Args:
        template: with the names of fields.
        call: the call made for each row.
        system: the text of a system message, if there is one.
        has_media: whether rows have pictures or sounds: then the text may be the same for all.

    Raises:
        Refusal: there is a system message, and the call is no chat.
        ConfigError: the template is wrong.
    """

    def __init__(self, template: str, call: str, system: str | None = None, *, has_media: bool = False) -> None:
        if system is not None and call != "chat":
            raise Refusal("--system is for --call chat")
        self.names = fields_of(template)
        self._render = make_prompt(template if self.names or not has_media else lambda _: template.format())
        # A single field of a chat may be a whole conversation.
        self._takes_list = call == "chat" and template == f"{{{''.join(self.names)}}}"
        self._system = system

    def __repr__(self) -> str:
        return f"<Prompts of {', '.join(self.names)}>"

    def function(self) -> Callable[[Row], Any]:
        """Return the function from a row to its prompt, or to its conversation."""
        fill, names, name, system = self._render, self.names, "".join(self.names), self._system
        of_row: Callable[[Row], Any]

        def render(row: Row) -> Any:
            return fill(_with_json(row, names))

        if "" in self.names:
            # Text lines are rows with a field ``text``; ``{}`` is the line itself.
            of_row = lambda row: fill(row["text"])  # noqa: E731
        elif self._takes_list:
            # A list is a whole conversation; a text is a message of the user's.
            of_row = lambda row: item if isinstance(item := _value(row, name), list) else render(row)  # noqa: E731
        else:
            of_row = render
        return of_row if system is None else lambda row: _with_system(system, of_row(row), row)

    def check_first(self, first: Row, source: Source) -> None:
        """Refuse a template that does not fit the first row.

        Raises:
            Refusal: the row cannot be used; or a field is missing there, or is a conversation where
                none can be.
        """
        if first.fault is not None:
            raise Refusal(f"{source.name}: {first.fault}")
        if "" in self.names:
            if source.form != "text":
                what = f"{source.name} is {source.form}; it has {_fields(first, source)}"
                raise Refusal(f"--prompt: {{}} stands for a text line, and {what}")
            return
        where = f"{source.name}, line {first.line}"
        for name in self.names:
            value = _value(first, name)
            if value is _MISSING:
                what = f"and the first row ({where}) has no such field; it has {_fields(first, source)}"
            elif isinstance(value, bytes):
                what = f"and in the first row ({where}) it is bytes, not a text"
            elif _is_conversation(value) and not self._takes_list:
                what = f"and in the first row ({where}) it is a conversation, which {_CONVERSATIONS_GO}"
            else:
                continue
            raise Refusal(f"--prompt names {{{name}}}, {what}")
        if self._system is not None and self._takes_list and _has_system(_value(first, self.names[0])):
            raise Refusal(f"--system: the conversation of the first row ({where}) has a system message of its own")


def check_columns(columns: Sequence[str], first: Row, source: Source) -> None:
    """Refuse columns that the first row lacks.

    Raises:
        Refusal: there is no such field.
    """
    missing = [name for name in columns if name not in first]
    if missing:
        where = f"{source.name}, line {first.line}"
        known = _fields(first, source)
        raise Refusal(f"--columns: the first row ({where}) has no field {missing[0]!r:.60}; it has {known}")


def _with_json(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """Return a row with JSON in place of the values that Python would write in words of its own.

    Raises:
        BadRow: a value is a conversation.
    """
    # All are looked up before any is written: a path may lead through what another name writes.
    values = {name: value for name in names if (value := _value(row, name)) is not _MISSING}
    for name, value in values.items():
        if isinstance(value, bool | list | dict):
            if _is_conversation(value):
                raise BadRow(f"{row.where} has a conversation in {name!r}, which {_CONVERSATIONS_GO}")
            values[name] = json.dumps(value, ensure_ascii=False, default=plain)
    return row | values


def _value(row: Row, name: str) -> Any:
    try:
        return value_of(row, name)
    except KeyError:
        return _MISSING


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) and "role" in each for each in value)


def _with_system(system: str, prompt: Any, row: Row) -> list[Any]:
    message = {"role": "system", "content": system}
    if not isinstance(prompt, list):
        return [message, {"role": "user", "content": prompt}]
    if _has_system(prompt):
        raise BadRow(f"{row.where} has a system message of its own, and --system is given")
    return [message, *prompt]


def _has_system(conversation: Any) -> bool:
    if not isinstance(conversation, list):
        return False
    return any(isinstance(message, dict) and message.get("role") in ("system", "developer") for message in conversation)


def _fields(row: Row, source: Source) -> str:
    """Return the fields of the first row that a template can name, and what may be wrong with them."""
    names = [name for name in source.names or row if not set(name) & set('{}!"\r\n')]
    hint = delimiter_hint(names, "--delimiter") if source.form == "csv" else ""
    return (", ".join(f"{{{name}}}" for name in names)[:200] or "no field at all") + hint
