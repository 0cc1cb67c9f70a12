"""The seams of the shell: the client builds its parts by class names of its own module.

A test replaces such a name, and so gives the client:
- other connections (``connected``);
- other arguments of a class, such as its times (``with_runners``, ``bridged``);
- a core that is looked on at (``watch_cores``);
- another date, or jitter that is the same in each run (``wall_time``, ``with_jitter``).
"""

import weakref
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest import mock

from batchclient import BatchClient, Http, SyncBatchClient
from batchclient import sync as sync_module
from batchclient._threads.bridge import Bridge
from batchclient._client import engine as engine_module
from batchclient._client.connections import Connections
from tests.core import Scheduler
from batchclient._shell import attempts as attempts_module
from batchclient._shell import exchange as exchange_module
from batchclient._shell.pages import Page
from batchclient._shell.runner import Runner

__all__ = [
    "bridge_of",
    "bridged",
    "connected",
    "wall_time",
    "watch_cores",
    "with_jitter",
    "with_runners",
]

_bridges = weakref.WeakKeyDictionary()


def connected(
    base_url="http://scripted/v1",
    *,
    calls=None,
    metrics=None,
    detection=None,
    asks_first=False,
    trusts_lists=True,
    made=lambda transport: None,
    backend=None,
    **arguments,
):
    """A ``BatchClient`` whose transports are made by these functions of a base URL.

    Args:
        base_url, arguments: the client's.
        calls: for calls; ``None``: the client's own.
        metrics: to ask a server for its load; likewise; none where ``detection`` alone is given. A user's own transport does not reach these.
        detection: to ask which server it is; likewise.
        asks_first: whether that comes before the first list.
        trusts_lists: whether a server that does not say which it is gets lists without a proof.
        made: told of each transport for calls.
        backend: the HTTP library, whatever else ``http`` says.
    """

    class Scripted(Connections):
        def __init__(self, settings):
            super().__init__(settings)
            if metrics is None and detection is not None:
                self.pages.pop(Page.LOAD, None)
            if detection is None and metrics is not None:
                self.pages.pop(Page.SERVER, None)

        def for_calls(self, base_url):
            transport = super().for_calls(base_url) if calls is None else calls(base_url)
            made(transport)
            return transport

        def asks_first(self):
            return asks_first

        def trusts_lists(self):
            return trusts_lists

        def for_metrics(self, base_url):
            return super().for_metrics(base_url) if metrics is None else metrics(base_url)

        def for_detection(self, base_url):
            return super().for_detection(base_url) if detection is None else detection(base_url)

    if backend is not None:
        arguments["http"] = replace(arguments.get("http") or Http(), backend=backend)
    with mock.patch.object(engine_module, "Connections", Scripted):
        return BatchClient(base_url, **arguments)


def with_runners(monkeypatch, **arguments):
    """Every client that starts in this test makes its runner with these arguments."""
    monkeypatch.setattr(engine_module, "Runner", partial(Runner, **arguments))


def bridged(*args, bridge=None, **arguments):
    """A ``SyncBatchClient`` whose bridge ``bridge_of`` returns; ``bridge``: the bridge's arguments."""
    made = []

    def make(on_end):
        made.append(Bridge(on_end, **(bridge or {})))
        return made[0]

    with mock.patch.object(sync_module, "Bridge", make):
        client = SyncBatchClient(*args, **arguments)
    # Whoever drops the client drops its bridge.
    _bridges[client] = weakref.ref(made[0])
    return client


def bridge_of(client):
    """The bridge of a client that ``bridged`` made."""
    return _bridges[client]()


def watch_cores(monkeypatch, *, told=lambda event: None, commanded=lambda commands: None):
    """Look on at the core of every client of this test.

    Args:
        told: called with each event, after the core has handled it.
        commanded: called with each list of commands, before the runner does them.
    """

    class Watched(Scheduler):
        def handle(self, event, now):
            super().handle(event, now)
            told(event)

        def commands(self):
            commands = super().commands()
            commanded(commands)
            return commands

    monkeypatch.setattr(engine_module, "Scheduler", Watched)


@contextmanager
def wall_time(now):
    """Clients take ``now()`` for the date, Unix time: what a server's ``Retry-After`` as a date is compared with."""
    with mock.patch.object(exchange_module, "time", SimpleNamespace(time=now)):
        yield


@contextmanager
def with_jitter(rng):
    """Clients that start within draw the jitter of their pauses from this generator."""
    with mock.patch.object(attempts_module, "Random", lambda: rng):
        yield
