"""A job that ends before its input does, for a reason of the command's own.

Rules:
- Where nothing has succeeded, a refused key and servers that are not there end the job at once: no
  row is used up.
- A guest that a server does not show its load ends the job: no later row would do better.
- One row after the other that is refused alike, with none that succeeds, ends it, too. The fault is
  then in the command, such as a parameter unknown to the server.
- A patience ends the job once every server that has answered has been away for so long, and a bound
  on the cost once it is reached. Servers that are there, and refuse a key or a model that they have
  served, are waited for no longer than a minute where no patience is given.
- A bound on a kind of rows ends it as soon as it is certain to be broken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from batchclient import MapResult, Statistics
from batchclient._maps.kinds import is_unpaid, kind_of
from batchclient.cli._map_options import REFUSED_S, MapOptions
from batchclient.cli._refusal import Refusal, in_options, refusal_of
from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    NoServerAnswered,
    NotFound,
    OutOfSockets,
    TooManyBadRows,
)
from batchclient.jobs.statuses import Status

__all__ = ["MOST_REFUSALS", "OUT_OF_USE", "End", "GivingUp"]

MOST_REFUSALS = 256
"""After so many rows refused alike, and none successful, no later row would do better."""
OUT_OF_USE = frozenset({"ejected", "probing", "awaited"})
"""The states of servers that get no calls."""
_OF_EVERY_ROW = (NotFound, ConnectFailed)
"""Errors of these kinds are alike whatever their words are, other refusals by their words."""


_SPENT = "stopped: --max-cost is reached"


class End(NamedTuple):
    """Why a job ends before its input does.

    Args:
        status: of the command.
        words: a sentence.
        is_wanted: whether somebody has said so.
        without: what the same command leaves out to go on; empty: nothing.
    """

    status: int
    words: str
    is_wanted: bool = False
    without: str = ""


class GivingUp:
    """Decides whether a job goes on.

    Args:
        options: of the command.
        most: the rows refused alike that end the job.

    Attributes:
        end: why the job ends; ``None``: it goes on.
        is_refused: whether it ends since all rows are refused alike.
    """

    def __init__(self, options: MapOptions, most: int) -> None:
        self.end: End | None = None
        self.is_refused: bool = False
        self._options = options
        self._most = most
        self._alike = ("", "")
        self._count = 0
        self._away_since: float | None = None

    def __repr__(self) -> str:
        return f"<GivingUp: {self.end.words if self.end else 'not yet'}>"

    def add(self, result: MapResult[Any], now: Statistics, rows: int | None = None) -> None:
        """Look at a row: where nothing has succeeded, its error may say that nothing will.

        Args:
            result: of the row. One that is reused tells nothing of refusals alike.
            now: of the client. In input order rows that succeeded may wait to be written.
            rows: that go first, if the row is one of these.

        Raises:
            Refusal: the job cannot even begin.
        """
        error = result.error
        if isinstance(error, ConfigError) and error.field == "limit.guest" and not result.reused:
            refusal = refusal_of(error)
            if not now.succeeded:
                raise refusal
            self.end = End(Status.USAGE, f"stopped: {refusal}", without=" without --guest")
        if is_unpaid(result) and not result.reused:
            self.end = End(Status.STOPPED, _SPENT)
        if error is None or now.succeeded:
            return
        self._refuse_to_begin(error, now)
        if result.reused or not isinstance(error, (*_OF_EVERY_ROW, BadRequest)):
            return
        alike = kind_of(error, "" if isinstance(error, _OF_EVERY_ROW) else str(error))
        self._count = self._count + 1 if alike == self._alike else 1
        self._alike = alike
        if self._count >= (self._most if rows is None else min(self._most, rows)):
            self.is_refused = True
            words = f"stopped: no row succeeded, and {self._count} failed alike with {alike.type}"
            self.end = End(Status.FAILED, words)

    def _refuse_to_begin(self, error: Exception, now: Statistics) -> None:
        if isinstance(error, OutOfSockets):
            return
        if isinstance(error, AuthenticationFailed):
            raise Refusal(in_options(str(error)))
        if isinstance(error, (NoServerAnswered, CertificateRefused)):
            raise Refusal(in_options(str(error)), Status.NO_SERVER)
        if isinstance(error, ConnectFailed) and all(each.state in OUT_OF_USE for each in now.endpoints):
            urls = "; ".join(f"{each.base_url} ({each.reason})" for each in now.endpoints)
            raise Refusal(f"no server is there: {urls}; --wait-for-server waits for one", Status.NO_SERVER)

    def break_bound(self, broken: TooManyBadRows) -> None:
        """End the job for a bound of ``--fail-if``."""
        self.end = End(Status.STOPPED, f"stopped: --fail-if {in_options(str(broken))}", without=" without the bound")

    def decline(self) -> None:
        """End the job after its pilot, as somebody has said."""
        self.end = End(Status.STOPPED, "stopped after the pilot", is_wanted=True)

    def look(self, statistics: Statistics, spent: float, now: float) -> None:
        """Look at the servers and at the cost.

        Args:
            statistics: of the client.
            spent: the cost so far.
            now: seconds, on any clock that never goes back.
        """
        if self._options.cost is not None and self._options.cost.is_reached(spent):
            self.end = End(Status.STOPPED, _SPENT)
        patience_s = self._options.outage_patience_s
        endpoints = [each for each in statistics.endpoints if each.state != "leaving"]
        is_refusal = all(each.state not in OUT_OF_USE for each in endpoints)
        if patience_s is None and is_refusal:
            patience_s = REFUSED_S
        has_answered = any(each.state != "awaited" for each in endpoints)
        if patience_s is None or not (has_answered and all(each.outage for each in endpoints)):
            self._away_since = None
            return
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= patience_s:
            status = Status.USAGE if is_refusal else Status.NO_SERVER
            self.end = End(status, f"gave up: {'; '.join(each.outage for each in endpoints)}")
