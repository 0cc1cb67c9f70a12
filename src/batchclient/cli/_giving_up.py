"""A job that ends before its input does, for a reason of the command's own.

Rules:
- Where nothing has succeeded, a refused key and servers that are not there end the job at once: no
  row is used up.
- One row after the other that is refused alike, with none that succeeds, ends it, too. The fault is
  then in the command, such as a parameter unknown to the server.
- A patience ends the job once every server that has answered has been away for so long, and a bound
  on the cost once it is reached. Servers that are there, and refuse a key or a model that they have
  served, are waited for no longer than a minute where no patience is given.
- A bound on a kind of rows ends it as soon as it is certain to be broken.
"""

from __future__ import annotations

from typing import Any

from batchclient import MapResult, Statistics
from batchclient.cli._failures import kind_of
from batchclient.cli._map_options import REFUSED_S, MapOptions
from batchclient.cli._refusal import Refusal, in_options
from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    CertificateRefused,
    ConnectFailed,
    NoServerAnswered,
    NotFound,
    OutOfSockets,
    TooManyBadRows,
)
from batchclient.jobs.statuses import Status

__all__ = ["MOST_REFUSALS", "OUT_OF_USE", "GivingUp"]

MOST_REFUSALS = 256
"""After so many rows refused alike, and none successful, no later row would do better."""
OUT_OF_USE = frozenset({"ejected", "probing", "awaited"})
"""The states of servers that get no calls."""
_OF_EVERY_ROW = (NotFound, ConnectFailed)
"""Errors of these kinds are alike whatever their words are, other refusals by their words."""


class GivingUp:
    """Decides whether a job goes on.

    Args:
        options: of the command.
        most: the rows refused alike that end the job.

    Attributes:
        refused: the class of the errors that were alike, if they ended the job.
        no_server: the outage that outlasted the patience, in a sentence, if so.
        is_refusal: whether it is one of servers that are there, and refuse the key or the model.
        is_too_dear: whether the bound on the cost stopped the job.
        broken: the bound of ``--fail-if`` that is broken, if one is.
        is_declined: whether somebody has ended the job after its pilot.
    """

    def __init__(self, options: MapOptions, most: int) -> None:
        self.refused: str = ""
        self.no_server: str = ""
        self.is_refusal: bool = False
        self.is_too_dear: bool = False
        self.broken: TooManyBadRows | None = None
        self.is_declined: bool = False
        self._options = options
        self._most = most
        self._alike = ("", "")
        self._count = 0
        self._away_since: float | None = None

    def __repr__(self) -> str:
        return f"<GivingUp: {self.reason or 'not yet'}>"

    @property
    def reason(self) -> str:
        """Why the job has ended, in a sentence; empty: it has not."""
        if self.no_server:
            return f"gave up: {self.no_server}"
        if self.is_too_dear:
            return "stopped: --max-cost is reached"
        if self.broken is not None and self.broken.is_early:
            return f"stopped: --fail-if {self.broken}"
        if self.is_declined:
            return "stopped after the pilot"
        if self.refused:
            return f"stopped: no row succeeded, and {self._count} failed alike with {self.refused}"
        return ""

    def refuse_to_begin(self, error: Exception | None, now: Statistics) -> None:
        """End a job where nothing has succeeded, and a row's error says that nothing will.

        Raises:
            Refusal: it is so.
        """
        if now.succeeded or isinstance(error, OutOfSockets):
            return
        if isinstance(error, AuthenticationFailed):
            raise Refusal(in_options(str(error)))
        if isinstance(error, (NoServerAnswered, CertificateRefused)):
            raise Refusal(in_options(str(error)), Status.NO_SERVER)
        if isinstance(error, ConnectFailed) and all(each.state in OUT_OF_USE for each in now.endpoints):
            urls = "; ".join(f"{each.base_url} ({each.reason})" for each in now.endpoints)
            raise Refusal(f"no server is there: {urls}; --wait-for-server waits for one", Status.NO_SERVER)

    def is_refused(self, result: MapResult[Any], rows: int | None = None) -> bool:
        """Whether an error is one refusal too many, of so many rows. A reused row tells nothing."""
        error = result.error
        if result.reused or not isinstance(error, (*_OF_EVERY_ROW, BadRequest)):
            return False
        alike = kind_of(error, "" if isinstance(error, _OF_EVERY_ROW) else str(error))
        self._count = self._count + 1 if alike == self._alike else 1
        self._alike = alike
        return self._count >= (self._most if rows is None else min(self._most, rows))

    def stop(self) -> None:
        """End the job for the rows that were refused alike."""
        self.refused = self._alike[0]

    def look(self, statistics: Statistics, spent: float, now: float) -> None:
        """Look at the servers and at the cost.

        Args:
            statistics: of the client.
            spent: the cost so far.
            now: seconds, on any clock that never goes back.
        """
        self.is_too_dear = self._options.cost is not None and self._options.cost.is_reached(spent)
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
            self.no_server, self.is_refusal = "; ".join(each.outage for each in endpoints), is_refusal
