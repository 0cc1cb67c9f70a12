"""``batchclient dead``: the dead letters of a Redis stream, looked at, put back and dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from batchclient.cli._redis import REDIS, STREAM, DeadStream, RedisUrl, StreamName, connected
from batchclient.cli._refusal import Refusal
from batchclient.cli._words import printable, put
from batchclient.cli.app import make_group

if TYPE_CHECKING:
    from batchclient.integrations.redis._dead import DeadLetter

__all__ = ["make_dead_app"]

_Entries = Annotated[
    list[str] | None, typer.Argument(metavar="[ENTRY]...", help="Dead letters, by the first column of list.")
]
_All = Annotated[bool, typer.Option("--all", help="All that are there now.")]


def make_dead_app() -> typer.Typer:
    """Make the group of commands."""
    app = make_group("Look at the messages that `batchclient work` gave up, put them back, drop them.")
    app.command("list")(list_letters)
    app.command()(retry)
    app.command()(drop)
    return app


def list_letters(
    *,
    redis: RedisUrl = REDIS,
    stream: StreamName = STREAM,
    dead: DeadStream = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, with the whole message.")] = False,
) -> None:
    """Write a line for each dead letter: entry, id, time, deliveries, worker, error."""

    async def show() -> None:
        async with connected(redis) as client:
            from batchclient.integrations.redis import dead_letters

            async for letter in dead_letters(client, stream=stream, dead=dead):
                # Columns have tabs between them, for cut.
                typer.echo(printable(_json(letter)) if as_json else "\t".join(map(printable, _columns(letter))))

    asyncio.run(show())


def _json(letter: DeadLetter) -> str:
    fields = {key: value.decode(errors="replace") for key, value in letter.fields.items()}
    return json.dumps({**asdict(letter), "fields": fields}, ensure_ascii=False)


def _columns(letter: DeadLetter) -> Sequence[object]:
    at = datetime.fromtimestamp(letter.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    error = f"{letter.error.get('type', '-')}: {letter.error.get('message', '')}"
    return letter.entry, letter.id, at, letter.deliveries, letter.worker, error


def retry(
    *,
    entries: _Entries = None,
    every: _All = False,
    redis: RedisUrl = REDIS,
    stream: StreamName = STREAM,
    dead: DeadStream = None,
) -> None:
    """Put dead letters back into the stream, as they were enqueued."""
    count = asyncio.run(_change("retry", entries, redis, stream, dead, every=every))
    put(f"{count:,} put back")


def drop(
    *,
    entries: _Entries = None,
    every: _All = False,
    redis: RedisUrl = REDIS,
    stream: StreamName = STREAM,
    dead: DeadStream = None,
) -> None:
    """Delete dead letters."""
    count = asyncio.run(_change("drop", entries, redis, stream, dead, every=every))
    put(f"{count:,} dropped")


async def _change(
    change: Literal["retry", "drop"],
    entries: Sequence[str] | None,
    url: str,
    stream: str,
    dead: str | None,
    *,
    every: bool,
) -> int:
    if bool(entries) == every:
        raise Refusal("name the dead letters, or give --all")
    async with connected(url) as client:
        from batchclient.integrations.redis import drop_dead, retry_dead

        function = retry_dead if change == "retry" else drop_dead
        return await function(client, None if every else entries, stream=stream, dead=dead)
