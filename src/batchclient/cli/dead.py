"""``batchclient dead``: the dead letters of a Redis stream, looked at, put back and dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from batchclient.cli._redis import DeadStream, RedisUrl, StreamName, connected, redis_url, stream_name, told
from batchclient.cli._refusal import Refusal
from batchclient.cli._words import printable

__all__ = ["make_dead_app"]

_Entries = Annotated[
    list[str] | None, typer.Argument(metavar="[ENTRY]...", help="Dead letters, by the first column of list.")
]
_All = Annotated[bool, typer.Option("--all", help="All that are there now.")]


def make_dead_app() -> typer.Typer:
    """Make the group of commands."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        help="Look at the messages that `batchclient work` gave up, put them back, drop them.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command("list")(list_letters)
    app.command("retry")(retry)
    app.command("drop")(drop)
    return app


def list_letters(
    *,
    redis: RedisUrl = None,
    stream: StreamName = None,
    dead: DeadStream = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, with the whole message.")] = False,
) -> None:
    """Write a line for each dead letter: entry, id, time, deliveries, worker, error."""
    with told():
        url, name = redis_url(redis), stream_name(stream)

    async def show() -> None:
        async with connected(url) as client:
            from batchclient.integrations.redis import dead_letters

            async for letter in dead_letters(client, stream=name, dead=dead):
                if as_json:
                    fields = {key: value.decode(errors="replace") for key, value in letter.fields.items()}
                    told_fields = {
                        "entry": letter.entry,
                        "id": letter.id,
                        "message": letter.message,
                        "at": letter.at,
                        "deliveries": letter.deliveries,
                        "worker": letter.worker,
                        "error": letter.error,
                        "fields": fields,
                    }
                    typer.echo(printable(json.dumps(told_fields, ensure_ascii=False)))
                    continue
                at = datetime.fromtimestamp(letter.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                error = f"{letter.error.get('type', '-')}: {letter.error.get('message', '')}"
                columns = (letter.entry, letter.id, at, str(letter.deliveries), letter.worker, error)
                typer.echo("\t".join(map(printable, columns)))

    with told(url):
        asyncio.run(show())


def retry(
    *,
    entries: _Entries = None,
    every: _All = False,
    redis: RedisUrl = None,
    stream: StreamName = None,
    dead: DeadStream = None,
) -> None:
    """Put dead letters back into the stream, as they were enqueued."""
    _change("retry_dead", "put back", entries, every, redis, stream, dead)


def drop(
    *,
    entries: _Entries = None,
    every: _All = False,
    redis: RedisUrl = None,
    stream: StreamName = None,
    dead: DeadStream = None,
) -> None:
    """Delete dead letters."""
    _change("drop_dead", "dropped", entries, every, redis, stream, dead)


def _change(
    change: str,
    done: str,
    entries: Sequence[str] | None,
    every: bool,  # noqa: FBT001
    redis: str | None,
    stream: str | None,
    dead: str | None,
) -> None:
    with told():
        url, name = redis_url(redis), stream_name(stream)
        if bool(entries) == every:
            raise Refusal("name the dead letters, or give --all")

    async def run() -> int:
        async with connected(url) as client:
            from batchclient.integrations import redis as module

            function: Callable[..., Awaitable[int]] = getattr(module, change)
            arguments: dict[str, Any] = {"stream": name, "dead": dead}
            return await function(client, None if every else entries, **arguments)

    with told(url):
        count = asyncio.run(run())
        typer.echo(f"{count:,} {done}")
