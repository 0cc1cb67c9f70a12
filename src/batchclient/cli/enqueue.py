"""``batchclient enqueue``: rows of a file into a Redis stream, each as a message.

Rules:
- The rows are those of ``batchclient map``, with their own parameters. Lines of text are prompts.
- An unusable row is named with its line, and stops no other. So is a row whose request the worker
  would refuse, and one with the id of an earlier row, with both lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from batchclient._maps.row import own_id_of
from batchclient._maps.row_calls import merged
from batchclient.cli._options import (
    CallOption,
    Delimiter,
    Encoding,
    Escape,
    FileFormat,
    MaxTokens,
    Params,
    Prompt,
    PromptFile,
    Quiet,
    RowParams,
    Rows,
    System,
    Temperature,
    params_from,
)
from batchclient.cli._prompts import Prompts, template_from
from batchclient.cli._redis import GROUP, REDIS, STREAM, GroupName, RedisUrl, StreamName, connected
from batchclient.cli._refusal import Refusal, named
from batchclient.cli._rows import Ids
from batchclient.cli._words import say
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow, Row
from batchclient.jobs.output import reason_of
from batchclient.jobs.source import Source
from batchclient.jobs.statuses import Status
from batchclient.rows import check_call
from batchclient.types import NOT_GIVEN

__all__ = ["enqueue"]

_MOST_NAMED = 10
_TOGETHER = 256
"""Messages of one call of ``enqueue``: how many are in the stream is known so exactly."""
_BESIDE = ("deadline", "tenant")
"""Fields that are the message's of a row that is a request. Beside a template, columns are data."""
_INPUTS = {"complete": "prompt", "chat": "messages", "embed": "input", "classify": "input"}


def enqueue(
    *,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[IN]", help="Rows as of map: a file, a folder, a pattern or a URL; - is stdin."),
    ] = None,
    redis: RedisUrl = REDIS,
    stream: StreamName = STREAM,
    group: GroupName = GROUP,
    max_queued: Annotated[
        int, typer.Option(min=1, metavar="N", help="Wait while the stream has N messages.")
    ] = 100_000,
    id_prefix: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Put TEXT before the id of each row that has one: one id has one result."),
    ] = "",
    from_list: Annotated[
        str | None, typer.Option(metavar="KEY", help="Move the items of a list, an older queue, instead of IN.")
    ] = None,
    format: FileFormat = None,  # noqa: A002  # the option's name
    delimiter: Delimiter = None,
    escape: Escape = None,
    encoding: Encoding = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    rows: Rows = None,
    row_params: RowParams = None,
    system: System = None,
    call: CallOption = "complete",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    param: Params = None,
    quiet: Quiet = False,
) -> Status:
    """Put the rows of IN into a Redis stream, for `batchclient work`.

    The rows are those of `batchclient map`: a template makes their prompts, or each is a request.
    Exit status: 0 all rows are in the stream, 1 some were unusable, or Redis is away or full, 2
    wrong usage.
    """
    if (source is None) == (from_list is None):
        raise Refusal("give IN or --from-list KEY, one of them")
    params = params_from(param or [], max_tokens=max_tokens, temperature=temperature, call=call)
    template = template_from(prompt, prompt_file)
    made = None
    if source is not None:
        try:
            opened = Source(source, format, delimiter=delimiter, escape=escape, encoding=encoding)
            first = opened.first()
            if template is None and opened.form == "text":
                template = "{}"
            read = Prompts(template, call, system, form=rows, row_params=row_params)
            made = _Rows(opened, read, params, id_prefix)
            note = "" if first is None else read.check_first(first, opened)
            if note and not quiet:
                say(note)
        except OSError as error:
            raise Refusal(f"{named(source, 'IN')}: {reason_of(error)}") from None
    asyncio.run(_run(redis, stream, group, max_queued, from_list, made, quiet=quiet))
    return Status.FAILED if made is not None and made.unusable else Status.OK


class _Rows:
    """The messages of rows, and how many rows make none.

    Args:
        source: read once, and closed at its end.
        calls: reads the call of a row.
        params: of all calls.
        id_prefix: stands before the id of a row that has one.
    """

    def __init__(self, source: Source, calls: Prompts, params: Mapping[str, Any], id_prefix: str) -> None:
        self._source = source
        self._calls = calls
        self._params = params
        self._id_prefix = id_prefix
        self._ids = Ids()
        self.unusable: int = 0

    def __repr__(self) -> str:
        return f"<_Rows of {self._source.name}>"

    def messages(self) -> Iterator[Mapping[str, Any]]:
        """Yield the message of each usable row.

        Raises:
            Refusal: the source cannot be read any further.
        """
        from batchclient.integrations.redis._messages import BadMessage, write_message

        try:
            with self._source:
                for row in self._source.read():
                    try:
                        if row.fault is not None:
                            raise BadRow(row.fault)
                        if "id" in row and (type(row["id"]) not in (str, int) or row["id"] == ""):
                            raise BadRow("id is empty, or no text and no whole number: nobody could name its result")
                        message = self._make(row)
                        write_message(message)
                        repeated = self._ids.repeated(row)
                        if repeated is not None:
                            raise BadRow(f"{repeated}, and one id has one result")
                    except (BadRow, BadMessage, ConfigError) as error:
                        self._tell(row, str(error))
                    else:
                        yield message
        except OSError as error:
            raise Refusal(f"IN cannot be read any further: {reason_of(error)}", Status.FAILED) from None

    def _make(self, row: Row) -> Mapping[str, Any]:
        """Return the message of a row: its request, and what stands beside it."""
        made = self._calls.read(row)
        if made.call not in _INPUTS:
            raise BadRow(f"a message has no call={made.call!r}")
        if made.timeout_s is not NOT_GIVEN:
            raise BadRow("timeout_s: a message has a deadline instead")
        params = merged(self._params, made.params)
        beside = {name: row[name] for name in _BESIDE if name in row} if self._calls.takes_fields else {}
        tenant = beside.get("tenant")
        named = None if tenant in (None, "") else str(tenant)
        # What the worker's client would refuse is refused here.
        check_call(made._replace(params=params), tenant=named)
        name = own_id_of(row)
        own = {
            "id": name and self._id_prefix + name,
            "model": made.model,
            "priority": made.priority,
            "session": made.session,
        }
        given = {name: value for name, value in own.items() if value is not None}
        return {**params, **beside, **given, "call": made.call, _INPUTS[made.call]: made.item}

    def _tell(self, row: Row, fault: str) -> None:
        self.unusable += 1
        if self.unusable <= _MOST_NAMED:
            say(fault if fault.startswith(row.where) else f"{row.where}: {fault}", event="row_unusable")
        elif self.unusable == _MOST_NAMED + 1:
            say("further unusable rows are counted")


async def _run(
    url: str, stream: str, group: str, max_queued: int, from_list: str | None, rows: _Rows | None, *, quiet: bool
) -> None:
    async with connected(url) as redis:
        from batchclient.integrations.redis import enqueue as put
        from batchclient.integrations.redis import move_list

        count = 0
        try:
            if from_list is not None:
                count = await move_list(redis, from_list, stream=stream, group=group)
            elif rows is not None:
                messages = rows.messages()
                while some := list(islice(messages, _TOGETHER)):
                    count += len(await put(redis, some, stream=stream, group=group, max_queued=max_queued))
        finally:
            if not quiet:
                unusable = f"; {rows.unusable:,} rows are unusable" if rows is not None and rows.unusable else ""
                say(f"{count:,} messages in {stream}{unusable}", event="enqueued")
