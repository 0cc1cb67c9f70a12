"""Reads servers' pages: which server it is, at the core's command (``_core/asking``), and its load.

Rules:
- Each endpoint has a connection for each page, with short time limits of its own.
- Finding out a server takes at most three GETs, in sequence (``dialects/_fingerprints``). No page
  is fetched twice, but after ``Ask.anew``, or where nobody was there.
- A failed question never fails a call. A missing metrics page is logged, once.
- A question ends with exactly one ``Asked``, after ``ServerKnown`` if anything is known, unless it
  is asked anew before, or the client closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus

import anyio

from batchclient._core.limits import ServerLoad
from batchclient._core.messages import Ask, Asked, Event, Failure, FailureKind
from batchclient._shell.exchange import from_transport
from batchclient._shell.log import EndpointLog
from batchclient._shell.pages import LARGEST_PAGE_BYTES, FetchedPage, Page, StartTask, read_page
from batchclient.dialects._fingerprints import Fingerprint, ServerFacts
from batchclient.dialects._metrics import EMPTIED_BY_READING, parse_metrics
from batchclient.dialects._status import failure_of
from batchclient.errors import BatchClientError, CertificateRefused, ConnectFailed, ConnectionLost, ResponseTooLarge
from batchclient.transport import Timeouts, Transport, WireRequest
from batchclient.transport._deadline import deadline

__all__ = ["OF_GATEWAYS", "Questions", "absence"]


_METRICS = WireRequest("GET", "/metrics")
_CANCELLED = Failure(FailureKind.NOT_SENT, BatchClientError, "the question was cancelled")
OF_GATEWAYS = (502, 503, 504)
_LOADING = "Loading model"
_NO_SERVER: FetchedPage = (0, {}, b"")
"""Stands for a mock's answer to an unexpected request."""


class Questions:
    """The questions of a runner.

    Args:
        transports: for each page in use, one transport per endpoint; closed by ``aclose``.
        start_task: starts a task that ends with the runner.
        tell: tells the core.
        report_server: told of each endpoint's facts.
        model: the model of interest on a metrics page with several.
        timeout_s: the most time for one page, seconds.
        endpoint_log: logs events of endpoints.
    """

    def __init__(
        self,
        transports: Mapping[Page, Sequence[Transport]],
        start_task: StartTask,
        tell: Callable[[Event], None],
        report_server: Callable[[int, ServerFacts], None],
        model: str | None,
        timeout_s: float,
        endpoint_log: EndpointLog,
    ) -> None:
        self._transports = {
            (number, page): transport for page, each in transports.items() for number, transport in enumerate(each)
        }
        self._start_task = start_task
        self._tell = tell
        self._report_server = report_server
        self._model = model
        self._timeout_s = timeout_s
        self._timeouts = Timeouts(connect_s=1.0, read_s=timeout_s, write_s=1.0)
        self._log = endpoint_log
        self._fingerprints: dict[int, Fingerprint] = {}
        self._reading: dict[int, anyio.Lock] = {}
        """By endpoint: two readers would ask for a page twice."""
        self._open: dict[int, tuple[Ask, Callable[[], object]]] = {}
        """By endpoint: the open question, and its cancellation."""
        self._said: set[tuple[int, str]] = set()

    def add(self, endpoint: int, transports: Mapping[Page, Transport]) -> None:
        """Serve another endpoint."""
        self._transports |= {(endpoint, page): transport for page, transport in transports.items()}

    async def remove(self, endpoint: int) -> None:
        """Close the connections of a removed endpoint."""
        self._drop(endpoint)
        self._fingerprints.pop(endpoint, None)
        self._reading.pop(endpoint, None)
        self._said = {said for said in self._said if said[0] != endpoint}
        await self._close([key for key in self._transports if key[0] == endpoint])

    async def aclose(self) -> None:
        """Close the connections. The closing runner has ended the tasks."""
        await self._close(list(self._transports))

    async def _close(self, keys: list[tuple[int, Page]]) -> None:
        # An error of one must not keep the rest open.
        async with AsyncExitStack() as closing:
            for key in keys:
                closing.push_async_callback(self._transports.pop(key).aclose)

    def has_page(self, endpoint: int, page: Page) -> bool:
        """Whether an endpoint may be asked for a page."""
        return (endpoint, page) in self._transports

    # How busy it is --------------------------------------------------------------------------------------------------

    async def fetch_load(self, endpoint: int) -> tuple[ServerLoad | None, bool]:
        """Return a server's load, or ``None``, and whether none is to be expected for a while."""
        load, trouble = await self._fetch_load(endpoint)
        if trouble and (endpoint, trouble) not in self._said:
            self._said.add((endpoint, trouble))
            message = "no metrics page at endpoint %d (%s): its load is not watched"
            self._log("metrics_page_absent", endpoint, message, endpoint, trouble, reason=trouble)
        return load, bool(trouble)

    async def _fetch_load(self, endpoint: int) -> tuple[ServerLoad | None, str]:
        """Return the load, or why none comes for a while, or neither: one may come next time."""
        fingerprint = self._fingerprints.get(endpoint)
        if fingerprint is not None and fingerprint.facts().dialect in EMPTIED_BY_READING:
            return None, "reading it would empty it for others"
        page = await self._fetch(endpoint, Page.LOAD, _METRICS)
        if isinstance(page, ResponseTooLarge):
            return None, f"it is over {LARGEST_PAGE_BYTES} bytes"
        if isinstance(page, Exception) or page is _NO_SERVER or page[0] >= 500:
            return None, ""
        status, _, body = page
        if not 200 <= status < 300:
            return None, f"it answers {status}"
        load = parse_metrics(body, self._model)
        return load, "" if load is not None else "nothing on it is known here"

    # Which server it is ----------------------------------------------------------------------------------------------

    def ask(self, question: Ask) -> None:
        """Find out which server an endpoint is; an open question about it is dropped."""
        endpoint = question.endpoint
        self._drop(endpoint)
        if question.anew:
            self._fingerprints.pop(endpoint, None)
        self._open[endpoint] = question, _starting
        cancel = self._start_task(partial(self._ask, question), _starting)
        # An eager task may be over already.
        if endpoint in self._open:
            self._open[endpoint] = question, cancel

    def _drop(self, endpoint: int) -> None:
        _, cancel = self._open.pop(endpoint, (None, _starting))
        cancel()

    async def _ask(self, question: Ask) -> None:
        endpoint = question.endpoint
        fingerprint = self._fingerprints.setdefault(endpoint, Fingerprint())
        failure: Failure | None = _CANCELLED
        answered = False
        try:
            failure = await self._read_server(endpoint, fingerprint)
            answered = not fingerprint.open
        finally:
            if self._open.get(endpoint, (None,))[0] is question:
                del self._open[endpoint]
                self._conclude(endpoint, fingerprint)
                self._tell(Asked(endpoint, answered, failure))

    async def find_out(self, endpoint: int, *, anew: bool = False) -> ServerFacts | None:
        """Ask a server now which server it is, without a call under way, and return its facts.

        The client knows the facts afterwards, too. ``None``: this server is not to be asked.

        Args:
            anew: whatever it said before, which stands where it says nothing now.
        """
        if not self.has_page(endpoint, Page.SERVER):
            return None
        known = self._fingerprints.get(endpoint)
        fingerprint = Fingerprint() if anew or known is None else known
        failure = await self._read_server(endpoint, fingerprint)
        if anew and known is not None and not fingerprint.heard:
            return known.facts()
        self._keep(endpoint, fingerprint)
        if failure is not None:
            # GETs in vain do not count.
            self._fingerprints.pop(endpoint, None)
        return fingerprint.facts()

    def adopt(self, endpoint: int, fingerprint: Fingerprint) -> None:
        """Go on from an endpoint's pages which were read for another reason."""
        known = self._fingerprints.get(endpoint)
        if known is None or not known.heard:
            self._keep(endpoint, fingerprint)

    def _keep(self, endpoint: int, fingerprint: Fingerprint) -> None:
        if self.has_page(endpoint, Page.SERVER):
            self._fingerprints[endpoint] = fingerprint
            self._conclude(endpoint, fingerprint)
            if not fingerprint.open:
                self._tell(Asked(endpoint, answered=True))

    async def _read_server(self, endpoint: int, fingerprint: Fingerprint) -> Failure | None:
        """Read the pages that are left, if any; return why the server does not seem to be there."""
        failure = None
        async with self._reading.setdefault(endpoint, anyio.Lock(fast_acquire=True)):
            while (request := fingerprint.next()) is not None:
                page = await self._fetch(endpoint, Page.SERVER, request)
                failure = absence(page, heard=fingerprint.heard)
                if page is _NO_SERVER:
                    fingerprint.give_up()
                elif isinstance(page, ResponseTooLarge):
                    fingerprint.take(200, {}, b"")
                elif isinstance(page, Exception) or not fingerprint.take(*page):
                    break
        return failure

    def _conclude(self, endpoint: int, fingerprint: Fingerprint) -> None:
        facts = fingerprint.facts()
        # A header of any answer tells that a server takes no lists: before the next list.
        if facts.server is not None or facts.singly or (facts.dialect and not fingerprint.open):
            # Facts of a page still missing can be added later.
            self._report_server(endpoint, facts)
        elif not fingerprint.open:
            message = "endpoint %d does not say which server it is; it is spoken to as before"
            self._log("server_unknown", endpoint, message, endpoint)

    async def _fetch(
        self, endpoint: int, page: Page, request: WireRequest
    ) -> FetchedPage | BatchClientError | TimeoutError:
        """Return a page, or why nothing came; something may come another time."""
        transport = self._transports.get((endpoint, page))
        if transport is None:
            # The endpoint was removed meanwhile.
            return _NO_SERVER
        try:
            async with deadline(self._timeout_s):
                return await read_page(transport, request, self._timeouts, only_success=page is Page.LOAD)
        except (BatchClientError, TimeoutError) as error:
            return error
        except Exception as error:  # whatever a mocked transport raises: no call may suffer for it
            kind, path = type(error).__name__, request.path
            self._log("question_failed", endpoint, "asking for %s failed: %s", path, kind, page=path, error=kind)
            return _NO_SERVER


def absence(came: FetchedPage | BaseException, *, heard: bool) -> Failure | None:
    """Return why a server does not seem to be there; ``None``: it is.

    ``heard``: it has answered another page; a gateway may let that one through alone. llama.cpp
    lists its models while it loads one, and answers 503 with ``_LOADING`` to all else.
    """
    if isinstance(came, (ConnectFailed, ConnectionLost)) and not isinstance(came, CertificateRefused):
        return None if heard else from_transport(came, listed=False)
    status = getattr(came, "status", None) if isinstance(came, BaseException) else came[0]
    loads = status in OF_GATEWAYS and _LOADING in str(came)
    if status not in OF_GATEWAYS or (heard and not loads):
        return None
    why = _LOADING if loads else HTTPStatus(status).phrase
    return failure_of(status, why, None, streamed=False, retry_after_s=None)


def _starting() -> None:
    """Stand for the cancellation of a starting task, which needs no work."""
