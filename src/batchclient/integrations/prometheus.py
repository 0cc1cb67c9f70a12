"""Metrics for Prometheus: in a registry (extra ``prometheus``), or at a port of their own.

Rules:
- A port needs no library: the page is written here. Only a registry's families are of
  ``prometheus_client``.
- Nothing is counted here. A scrape reads a snapshot of the client, made between two callbacks of
  its event loop; calls pay nothing.
- A registry has one collector, for one client or several with names. Several processes are several
  targets: the multi-process mode of ``prometheus_client`` merges files and takes no collectors.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import TYPE_CHECKING, Any

from batchclient import BatchClient, Histogram, SyncBatchClient
from batchclient._common.log import log
from batchclient._metrics.page import page_of
from batchclient._metrics.registry import METRICS, Metric, View
from batchclient._metrics.server import PageServer
from batchclient._metrics.snapshots import Snapshots, core_of, take_all
from batchclient._metrics.text import CONTENT_TYPE, bounds_as_text, lines_of, text_of
from batchclient.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector as _Collector
else:
    _Collector = object
    """A registry asks for ``collect`` and ``describe`` alone."""

__all__ = ["Collector", "More", "serve"]

More = Callable[[], Mapping[str, float]]
"""Returns a program's own numbers by name, such as ``{"shop_orders_total": 17}``. A name that ends
in ``_total`` is a counter's, any other a gauge's. Called by the thread that answers a scrape, as
long as the client lives; of a method the object is not kept alive.
"""
_NAME = re.compile(r"(?!batchclient_|_total$)[a-zA-Z_:][a-zA-Z0-9_:]*")
_MOST_TENANTS = 100
_MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


class _NoNumber(ValueError):
    """A program's own number has a wrong name or value."""


class _Source:
    """A client with its name and tenants, and its program's own numbers."""

    __slots__ = ("_more", "_said", "name", "snapshots", "tenants")

    def __init__(self, snapshots: Snapshots, name: str | None, tenants: frozenset[str], more: More | None) -> None:
        self.snapshots = snapshots
        self.name = name
        self.tenants = tenants
        # A method's object may hold the client, which this must not keep alive.
        self._more = weakref.WeakMethod(more) if inspect.ismethod(more) else more
        self._said = False

    def more(self) -> dict[str, float]:
        """Return the program's own numbers; none where its function fails, which is said once."""
        more = self._more() if isinstance(self._more, weakref.WeakMethod) else self._more
        if more is None or self.snapshots.client is None:
            return {}
        try:
            return {name: _number(name, number) for name, number in dict(more()).items()}
        except Exception as error:  # the user's function: the client's own numbers are worth a page
            if not self._said:
                self._said = True
                reason = str(error) if isinstance(error, _NoNumber) else type(error).__name__
                log("own_numbers_failed", "the page lacks the numbers of more=: %s", reason, reason=reason)
            return {}


class _Sources:
    """Clients with their names: what the pages and a registry's families are made of."""

    def __init__(self) -> None:
        for variable in _MULTIPROCESS:
            if os.environ.get(variable):
                message = (
                    f"{variable} is set: its files take no collectors. Unset it, and give every process a port of its"
                    " own: serve(client, port)"
                )
                raise ConfigError(message)
        self._sources: list[_Source] = []

    def __len__(self) -> int:
        return len(self._sources)

    def add(
        self,
        client: BatchClient | SyncBatchClient,
        client_name: str | None,
        tenant_labels: Iterable[str],
        more: More | None,
    ) -> None:
        if not isinstance(client, BatchClient | SyncBatchClient):
            message = f"client is a BatchClient or a SyncBatchClient, not a {type(client).__name__}"
            raise ConfigError(message, field="client")
        if client_name is not None and not (isinstance(client_name, str) and client_name):
            raise ConfigError("client_name is a text that is not empty, or None", field="client_name")
        if more is not None and not callable(more):
            raise ConfigError("more is a function that returns numbers by name, or None", field="more")
        tenants = _checked(tenant_labels)
        sources = [source for source in self._sources if source.snapshots.client is not None]
        for source in sources:
            if source.snapshots.client is core_of(client):
                message = (
                    f"the collector has this client already{'' if source.name is None else f', as {source.name!r}'}"
                )
                raise ConfigError(message, field="client")
            if source.name == client_name:
                named = "without a name" if client_name is None else f"named {client_name!r}"
                raise ConfigError(
                    f"the collector has a client {named} already; give each its own client_name", field="client_name"
                )
        snapshots = Snapshots(client)
        # The first scrape may come while the event loop is blocked.
        take_all([snapshots])
        self._sources = [*sources, _Source(snapshots, client_name, tenants, more)]

    def views(self) -> list[tuple[str, View]]:
        sources = self._sources
        return [
            (source.name or "", View(snapshot, snapshot.statistics, source.tenants))
            for source, snapshot in zip(sources, take_all([each.snapshots for each in sources]), strict=True)
            if snapshot is not None
        ]

    def more(self) -> dict[str, list[tuple[str, float]]]:
        """Return the programs' own numbers by name, each with its client's name."""
        found: dict[str, list[tuple[str, float]]] = {}
        for source in self._sources:
            for name, number in source.more().items():
                found.setdefault(name, []).append((source.name or "", number))
        return found

    def metrics_page(self) -> tuple[bytes, str]:
        return text_of(self.views()) + lines_of(self.more()), CONTENT_TYPE

    def statistics_page(self) -> tuple[bytes, str]:
        [source] = self._sources
        [snapshot] = take_all([source.snapshots])
        body = b"null" if snapshot is None else page_of(snapshot, source.name, source.tenants, source.more())
        return body, "application/json"


class Collector(_Collector):
    """The metrics of a client, for a registry: ``REGISTRY.register(Collector(client))``.

    The collector does not keep the client alive. A dropped client has no metrics.

    Args:
        client: a ``BatchClient`` or ``SyncBatchClient``.
        client_name: the value of the label ``client``; ``None``: no such label.
        tenant_labels: the tenants that have metrics of their own, 100 at most.
        more: the program's own numbers, beside the client's.

    Raises:
        ConfigError: an argument is wrong, or ``PROMETHEUS_MULTIPROC_DIR`` is set.
        ImportError: ``prometheus_client`` is missing.
    """

    def __init__(
        self,
        client: BatchClient | SyncBatchClient,
        *,
        client_name: str | None = None,
        tenant_labels: Iterable[str] = (),
        more: More | None = None,
    ) -> None:
        try:
            import prometheus_client  # noqa: F401  # a collector without the library has no use
        except ModuleNotFoundError as missing:
            message = "a collector needs prometheus_client, of the extra batchclient[prometheus]"
            raise ImportError(message) from missing
        self._sources = _Sources()
        self._sources.add(client, client_name, tenant_labels, more)

    def __repr__(self) -> str:
        return f"<Collector of {len(self._sources)} clients>"

    def add(
        self,
        client: BatchClient | SyncBatchClient,
        *,
        client_name: str | None = None,
        tenant_labels: Iterable[str] = (),
        more: More | None = None,
    ) -> None:
        """Collect the metrics of another client, too. The client needs a name of its own.

        Args:
            client, client_name, tenant_labels, more: as for the constructor.

        Raises:
            ConfigError: an argument is wrong; or the collector has the client or the name already.
        """
        self._sources.add(client, client_name, tenant_labels, more)

    def describe(self) -> Iterator[Family]:
        """Name the metrics, so that a registry refuses a second collector."""
        for metric in METRICS:
            yield _family(metric, ())

    def collect(self) -> Iterator[Family]:
        """Read the clients, and return their metrics."""
        views = self._sources.views()
        labels = ("client",) if any(name for name, _ in views) else ()
        for metric in METRICS:
            family = _family(metric, labels)
            for name, view in views:
                before = (name,) if labels else ()
                for values, number in metric.read(view):
                    _add(family, (*before, *values), number)
            yield family
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, numbers in self._sources.more().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            own = kind(name, "The program's own.", labels=labels)
            for client, number in numbers:
                own.add_metric((client,) if labels else (), number)
            yield own


def serve(
    client: BatchClient | SyncBatchClient,
    port: int,
    host: str = "127.0.0.1",
    *,
    client_name: str | None = None,
    tenant_labels: Iterable[str] = (),
    more: More | None = None,
) -> PageServer:
    """Serve a client's metrics at ``/metrics`` and its statistics as JSON at ``/statistics``.

    A thread of its own answers, and ends with the client. The pages have no password: whoever
    reaches the port reads the names of models and servers.

    Args:
        client, client_name, tenant_labels, more: as for ``Collector``.
        port: 0 for any free one; see ``port`` of the returned server.
        host: the address to listen at; ``"0.0.0.0"`` for a scraper on another machine.

    Returns:
        A server with ``port``, ``url`` and ``close()``.

    Raises:
        ConfigError: an argument is wrong; the port is in use; or ``PROMETHEUS_MULTIPROC_DIR`` is
            set.
    """
    sources = _Sources()
    sources.add(client, client_name, tenant_labels, more)
    pages = {"/metrics": sources.metrics_page, "/statistics": sources.statistics_page}
    server = PageServer(pages, port, host)
    core_of(client)._engine.attached.append(server.close_soon)
    # A client may be dropped without being closed.
    weakref.finalize(client, server.close_soon).atexit = False
    return server


def _number(name: object, number: object) -> float:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _NoNumber(f"{name!r:.60} is no name of a metric, or begins with batchclient_")
    if isinstance(number, bool) or not isinstance(number, Real) or not math.isfinite(number):
        raise _NoNumber(f"{name} is no finite number, but a {type(number).__name__}")
    return float(number)


def _checked(tenants: Iterable[str]) -> frozenset[str]:
    if isinstance(tenants, str) or not isinstance(tenants, Iterable):
        raise ConfigError("tenant_labels is a list of tenants' names", field="tenant_labels")
    names = list(tenants)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError("tenant_labels: every tenant's name is a text that is not empty", field="tenant_labels")
    if len(names) > _MOST_TENANTS:
        message = f"tenant_labels: {len(names)} tenants would make too many series; {_MOST_TENANTS} at most"
        raise ConfigError(message, field="tenant_labels")
    return frozenset(names)


def _family(metric: Metric, before: tuple[str, ...]) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily, "gauge": GaugeMetricFamily}
    family: Family = kinds[metric.kind](metric.full_name, metric.help, labels=(*before, *metric.labels))
    return family


def _add(family: Any, values: Sequence[str], number: float | Histogram) -> None:
    if not isinstance(number, Histogram):
        family.add_metric(values, number)
        return
    below = accumulate(number.counts)
    family.add_metric(values, list(zip(bounds_as_text(number.bounds), below, strict=True)), number.sum)
