"""``batchclient enqueue``: rows of a file into a Redis stream, each as a message.

Rules:
- A row is a message itself, or its prompt is made by a template, as those of ``batchclient map``.
- An unusable row is told with its line, and stops no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from batchclient.cli._prompts import Prompts, template_from
from batchclient.cli._redis import GroupName, RedisUrl, StreamName, connected, group_name, redis_url, stream_name, told
from batchclient.cli._refusal import Refusal, call_from, named, params_from, refusal_of_file
from batchclient.cli._words import say
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow, Row
from batchclient.jobs.output import reason_of
from batchclient.jobs.source import Source, open_source
from batchclient.jobs.statuses import Status

__all__ = ["enqueue"]

_MOST_TOLD = 10
_INPUTS = {"complete": "prompt", "chat": "messages", "embed": "input", "classify": "input"}


def enqueue(
    *,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[IN]", help="JSONL, CSV with a header, or text; also gzipped. - is stdin."),
    ] = None,
    redis: RedisUrl = None,
    stream: StreamName = None,
    group: GroupName = None,
    max_queued: Annotated[
        int, typer.Option(min=1, metavar="N", help="Wait while the stream has N messages.")
    ] = 100_000,
    from_list: Annotated[
        str | None, typer.Option(metavar="KEY", help="Move the items of a list, an older queue, instead of IN.")
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        str | None, typer.Option(metavar="jsonl|text|csv", help="The form of IN (default: its ending decides).")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Template as of map; without it a row is a message: prompt or messages, and parameters."),
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with the template, instead of --prompt.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --call chat: a system message before each conversation.")
    ] = None,
    call: Annotated[
        str, typer.Option(metavar="CALL", help="With --prompt: complete, chat, embed or classify.")
    ] = "complete",
    max_tokens: Annotated[int | None, typer.Option(help="With --prompt: tokens to generate, at most.")] = None,
    temperature: Annotated[float | None, typer.Option(help="With --prompt: sampling temperature.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="With --prompt: any other field; repeatable.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
) -> None:
    """Put the rows of IN into a Redis stream, for `batchclient work`.

    Exit status: 0 all rows are in the stream, 1 some were unusable, or Redis is away or full, 2
    wrong usage.
    """
    with told():
        url, place = redis_url(redis), (stream_name(stream), group_name(group))
        if (source is None) == (from_list is None):
            raise Refusal("give IN or --from-list KEY, one of them")
        has_template = prompt is not None or prompt_file is not None
        asked = call_from(call)
        params = params_from(param or [], max_tokens=max_tokens, temperature=temperature, call=asked)
        if not has_template and (params or system is not None or asked != "complete"):
            raise Refusal("--call, --system and parameters go with --prompt; without it a row is a whole message")
        template = template_from(prompt, prompt_file) if has_template else None
        rows = _Rows()
        messages: Iterator[Mapping[str, Any]] = iter(())
        if source is not None:
            prompts = None if template is None else Prompts(template, asked, system)
            opened = _open(source, format)
            messages = rows.messages(opened, prompts, asked, params)
    with told(url):
        status = asyncio.run(_run(url, place, max_queued, from_list, messages, rows, quiet=quiet))
    raise typer.Exit(status)


class _Rows:
    """Makes messages of rows, and counts the unusable ones."""

    def __init__(self) -> None:
        self.unusable = 0

    def messages(
        self, source: Source, prompts: Prompts | None, call: str, params: Mapping[str, Any]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the message of each usable row."""
        from batchclient.integrations.redis._messages import BadMessage, write_message

        make = self._plain if prompts is None else self._templated(prompts.function(), call, params)
        with source:
            for row in source.read():
                try:
                    if row.fault is not None:
                        raise BadRow(row.fault)
                    message = make(row)
                    write_message(message)
                except (BadRow, BadMessage, ConfigError) as error:
                    self._tell(row, error)
                else:
                    yield message

    def _tell(self, row: Row, error: Exception) -> None:
        self.unusable += 1
        text = str(error)
        if self.unusable <= _MOST_TOLD:
            say(text if text.startswith("line ") else f"line {row.line}: {text}")
        elif self.unusable == _MOST_TOLD + 1:
            say("further unusable rows are counted")

    @staticmethod
    def _plain(row: Row) -> Mapping[str, Any]:
        return {"prompt": row["text"]} if row.keys() == {"text"} else row

    @staticmethod
    def _templated(
        render: Callable[[Row], Any], call: str, params: Mapping[str, Any]
    ) -> Callable[[Row], Mapping[str, Any]]:
        def make(row: Row) -> Mapping[str, Any]:
            item = render(row)
            if call == "chat" and isinstance(item, str):
                item = [{"role": "user", "content": item}]
            own = row.get("id")
            identity = {"id": str(own)} if type(own) in (str, int) and own != "" else {}
            return {**identity, "call": call, _INPUTS[call]: item, **params}

        return make


def _open(source: str, form: str | None) -> Source:
    try:
        return open_source(source, form)
    except OSError as error:
        raise Refusal(f"{named(source, 'IN')}: {reason_of(error)}") from None
    except ConfigError as error:
        raise refusal_of_file(error) from None


async def _run(
    url: str,
    place: tuple[str, str],
    max_queued: int,
    from_list: str | None,
    messages: Iterator[Mapping[str, Any]],
    rows: _Rows,
    *,
    quiet: bool,
) -> int:
    async with connected(url) as redis:
        from batchclient.integrations.redis import move_list
        from batchclient.integrations.redis._queueing import enqueue_groups

        count, (stream, group) = 0, place
        try:
            if from_list is not None:
                count = await move_list(redis, from_list, stream=stream, group=group)
            else:
                groups = enqueue_groups(redis, messages, stream=stream, group=group, max_queued=max_queued)
                async for ids in groups:
                    count += len(ids)
        except OSError as error:
            if type(error).__module__ != "builtins":
                raise
            raise Refusal(f"IN cannot be read any further: {reason_of(error)}") from None
        finally:
            if not quiet:
                unusable = f"; {rows.unusable:,} rows are unusable" if rows.unusable else ""
                say(f"{count:,} messages in {stream}{unusable}")
    return Status.FAILED if rows.unusable else Status.OK
