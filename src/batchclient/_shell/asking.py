"""Asking servers for their pages when the core says so (``_core/asking.py`` decides when): ``GET`` after ``GET``, beside the calls.

Rules:
- Each endpoint has a connection of its own for each sort of question, with its own short time limits.
- Which server an endpoint is takes at most three GETs, one at a time (``dialects/_fingerprints.py``). Pages that were read are not fetched again;
  ``Ask.anew`` discards them.
- A question that fails never fails a call. A missing metrics page is logged, once.
- A question ends with exactly one ``Asked``, unless it is dropped or the client is closed. ``LoadReported`` or ``ServerKnown`` comes before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from batchclient._core.limits import ServerLoad
from batchclient._core.messages import Ask, Asked, AskOutcome, Event, LoadReported, Page
from batchclient._shell.backend import Backend
from batchclient._shell.pages import LARGEST_PAGE_BYTES, FetchedPage, StartTask, read_page
from batchclient.dialects._fingerprints import Fingerprint, ServerFacts
from batchclient.dialects._metrics import parse_metrics
from batchclient.errors import BatchClientError, ResponseTooLarge
from batchclient.transport import Timeouts, Transport, WireRequest
from batchclient.transport._deadline import deadline

__all__ = ["Questions"]

_log = logging.getLogger("batchclient")

_METRICS = WireRequest("GET", "/metrics")
_NO_SERVER: FetchedPage = (0, {}, b"")
"""Stands for what a mock says to a request that it does not expect."""


class Questions:
    """The questions of one runner.

    Args:
        backend: the loop's clock.
        transports: one per endpoint for each page that may be asked for; closed by ``aclose``.
        start_task: starts a task that ends with the runner.
        tell: tells the core.
        report_server: told of each endpoint what was found out.
        model: the model whose figures are wanted, where a metrics page shows several.
        timeout_s: of one page, seconds.
    """

    def __init__(
        self,
        backend: Backend,
        transports: Mapping[Page, Sequence[Transport]],
        start_task: StartTask,
        tell: Callable[[Event], None],
        report_server: Callable[[int, ServerFacts], None],
        model: str | None,
        timeout_s: float,
    ) -> None:
        self._backend = backend
        self._transports = {
            (number, page): transport for page, each in transports.items() for number, transport in enumerate(each)
        }
        self._start_task = start_task
        self._tell = tell
        self._report_server = report_server
        self._model = model
        self._timeout_s = timeout_s
        self._timeouts = Timeouts(connect_s=1.0, read_s=timeout_s, write_s=1.0)
        self._fingerprints: dict[int, Fingerprint] = {}
        self._under_way: dict[tuple[int, Page], tuple[Ask, Callable[[], object]]] = {}
        """Each question that is open, and what cancels it."""
        self._said: set[tuple[int, str]] = set()

    def ask(self, question: Ask) -> None:
        """Fetch and read a page."""
        key = question.endpoint, question.page
        if question.anew:
            self._fingerprints.pop(question.endpoint, None)
        work = self._ask_for_load if question.page is Page.LOAD else self._ask_for_server
        self._under_way[key] = question, _starting
        cancel = self._start_task(partial(work, question), _starting)
        # An eager task may be over already.
        if self._under_way.get(key, (None,))[0] is question:
            self._under_way[key] = question, cancel

    def drop(self, endpoint: int, page: Page) -> None:
        """End a question that is under way."""
        _, cancel = self._under_way.pop((endpoint, page), (None, _starting))
        cancel()

    def _end(self, question: Ask, outcome: AskOutcome, say: Callable[[], object] | None) -> None:
        """A question's task ends, however: tell what its page says, and how it went, unless the question was dropped before."""
        key = question.endpoint, question.page
        if self._under_way.get(key, (None,))[0] is question:
            del self._under_way[key]
            if say is not None:
                say()
            self._tell(Asked(question.endpoint, question.page, outcome))

    def adopt(self, endpoint: int, fingerprint: Fingerprint) -> None:
        """Some pages of an endpoint were read for another reason: go on from there."""
        known = self._fingerprints.get(endpoint)
        if (endpoint, Page.SERVER) not in self._transports or (known is not None and not known.untouched):
            return
        self._fingerprints[endpoint] = fingerprint
        self._conclude(endpoint, fingerprint)
        if not fingerprint.open:
            self._tell(Asked(endpoint, Page.SERVER, AskOutcome.ANSWERED))

    def add(self, endpoint: int, transports: Mapping[Page, Transport]) -> None:
        """Another endpoint is there."""
        self._transports |= {(endpoint, page): transport for page, transport in transports.items()}

    async def remove(self, endpoint: int) -> None:
        """An endpoint has gone: close its connections."""
        self._fingerprints.pop(endpoint, None)
        for page in Page:
            self.drop(endpoint, page)
        await self._close([key for key in self._transports if key[0] == endpoint])

    async def aclose(self) -> None:
        """Close the connections. Whoever closes has ended the tasks."""
        await self._close(list(self._transports))

    async def _close(self, keys: list[tuple[int, Page]]) -> None:
        # Whatever one of them raises, the others are closed.
        async with AsyncExitStack() as closing:
            for key in keys:
                closing.push_async_callback(self._transports.pop(key).aclose)

    # How busy it is --------------------------------------------------------------------------------------------------

    async def _ask_for_load(self, question: Ask) -> None:
        endpoint, outcome, load = question.endpoint, AskOutcome.SILENCE, None
        try:
            load, trouble = await self._fetch_load(self._transports[endpoint, Page.LOAD])
            if load is not None:
                outcome = AskOutcome.ANSWERED
            elif trouble is not None:
                outcome = AskOutcome.NOTHING
                self._say_once(endpoint, trouble)
        finally:
            self._end(question, outcome, None if load is None else lambda: self._tell(LoadReported(endpoint, load)))

    async def _fetch_load(self, transport: Transport) -> tuple[ServerLoad | None, str | None]:
        """The load; or why there will be none for a while; or neither, if it may come next time."""
        try:
            async with deadline(self._timeout_s):
                status, _, page = await read_page(transport, _METRICS, self._timeouts, only_success=True)
        except ResponseTooLarge:
            return None, f"it is over {LARGEST_PAGE_BYTES} bytes"
        except (BatchClientError, TimeoutError):
            return None, None
        except Exception as error:  # whatever a mocked transport raises: no call may suffer for it
            _log.debug("asking for the metrics page failed: %s", type(error).__name__)
            return None, None
        if status >= 500:
            return None, None
        if not 200 <= status < 300:
            return None, f"it answers {status}"
        load = parse_metrics(page, self._model)
        return load, None if load is not None else "nothing on it is known here"

    def _say_once(self, endpoint: int, trouble: str) -> None:
        if (endpoint, trouble) not in self._said:
            self._said.add((endpoint, trouble))
            _log.info("no metrics page at endpoint %d (%s): its load is not watched", endpoint, trouble)

    # Which server it is ----------------------------------------------------------------------------------------------

    async def _ask_for_server(self, question: Ask) -> None:
        endpoint, outcome = question.endpoint, AskOutcome.SILENCE
        transport = self._transports[endpoint, Page.SERVER]
        fingerprint = self._fingerprints.setdefault(endpoint, Fingerprint())
        try:
            while (request := fingerprint.next()) is not None:
                page = await self._fetch_page(transport, request)
                if page is _NO_SERVER:
                    fingerprint.give_up()
                elif page is None or not fingerprint.take(*page):
                    break
            if not fingerprint.open:
                outcome = AskOutcome.ANSWERED
        finally:
            self._end(question, outcome, lambda: self._conclude(endpoint, fingerprint))

    def _conclude(self, endpoint: int, fingerprint: Fingerprint) -> None:
        facts = fingerprint.facts()
        if facts.server is not None or (facts.dialect is not None and not fingerprint.open):
            # What a page that is still missing would add can be added later.
            self._report_server(endpoint, facts)
        elif not fingerprint.open:
            _log.debug("endpoint %d does not say which server it is; it is spoken to as before", endpoint)

    async def _fetch_page(self, transport: Transport, request: WireRequest) -> FetchedPage | None:
        """A page; ``None``: nothing came, and may come another time."""
        try:
            async with deadline(self._timeout_s):
                return await read_page(transport, request, self._timeouts)
        except ResponseTooLarge:
            return 200, {}, b""
        except (BatchClientError, TimeoutError):
            return None
        except Exception as error:  # whatever a mocked transport raises: no call may suffer for it
            _log.debug("asking for %s failed: %s", request.path, type(error).__name__)
            return _NO_SERVER


def _starting() -> None:
    """Stands for a task that is being started, and for nothing to be done when it is ended."""
