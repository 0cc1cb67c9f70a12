"""Reads a server's pages beside the calls: which server it is, and how busy it is.

Rules of both:
- Each page has a connection of its own, with short time limits. A failed question fails no call.

Which server it is: asked at the core's command (``_core/asking``), since calls wait for it.
- At most three GETs, in sequence (``dialects/_fingerprints``). No page is fetched twice, but after
  ``Ask.anew``, or where nobody was there.
- A question ends with exactly one ``Asked``, after ``ServerKnown`` if anything is known, unless it
  is asked anew before, or the client closed.

How busy it is: watched while it matters, for the limits, and to tell a dead engine.
- The page is asked for while at least two sequences are in flight at the server: a limit of 1
  cannot be lowered. An ailing server's is beside a single one, too: its engine may stand still.
- The first look comes 1 s after a batch was sent: a test with a mocked library expects no requests
  but its own, and is over by then. With the last call the watch ends, and an open question is
  dropped: between calls nothing is alive.
- A slow page is asked for less often: half of the time no question is open.
- After no page (404, 401, a redirect, nothing known on the page) no question follows for 60 s; the
  log says it once. Each silence or 5xx doubles the time from question to question: 2 s, 4 s, up to
  60 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

import anyio

from batchclient._core.limits import ServerLoad
from batchclient._core.messages import Ask, Asked, Event, Failure, FailureKind, LoadHidden, LoadReported
from batchclient._shell.backend import Backend
from batchclient._shell.faults import absence, unheard
from batchclient._shell.log import EndpointLog
from batchclient._shell.pages import LARGEST_PAGE_BYTES, FetchedPage, Page, PageTimes, StartTask, read_page
from batchclient.dialects._fingerprints import Fingerprint, ServerFacts
from batchclient.dialects._metrics import EMPTIED_BY_READING, parse_metrics
from batchclient.errors import BatchClientError, ReadTimedOut, ResponseTooLarge
from batchclient.transport import Timeouts, Transport, WireRequest
from batchclient.transport._deadline import deadline

__all__ = ["Watcher", "Watching"]

_METRICS = WireRequest("GET", "/metrics")
_LONGEST_PAUSE_S = 60.0
_CANCELLED = Failure(FailureKind.NOT_SENT, BatchClientError, "the question was cancelled")
_NO_SERVER: FetchedPage = (0, {}, b"")
"""Stands for a mock's answer to an unexpected request."""
_Came = FetchedPage | BatchClientError | TimeoutError


@dataclass(slots=True)
class Watching:
    """What the watchers of a runner share.

    Args:
        backend: the loop's clock and timers.
        start_task: starts a task that ends with the runner.
        tell: tells the core.
        report_server: told of each endpoint's facts.
        is_heeded: whether an endpoint's load could change anything now.
        log: logs events of endpoints.
        model: the model of interest on a metrics page with several.
        under_way: the watchers that watch a load now, by endpoint.
    """

    backend: Backend
    start_task: StartTask
    tell: Callable[[Event], None]
    report_server: Callable[[int, ServerFacts], None]
    is_heeded: Callable[[int], bool]
    log: EndpointLog
    model: str | None
    times: PageTimes
    under_way: dict[int, Watcher] = field(default_factory=dict)


class Watcher:
    """Reads the pages of one server.

    Args:
        endpoint: its id.
        transports: of the pages in use; closed by ``aclose``.
        shared: what the runner's watchers share.
    """

    def __init__(self, endpoint: int, transports: Mapping[Page, Transport], shared: Watching) -> None:
        self._endpoint = endpoint
        self._transports = dict(transports)
        self._shared = shared
        self._known = Fingerprint()
        self._reading = anyio.Lock(fast_acquire=True)
        """Two readers would ask for a page twice."""
        self._question: Ask | None = None
        self._drop_question: Callable[[], object] = _nothing
        self._end_watch: Callable[[], object] = _nothing
        self._silences = 0
        self._ask_load_at = 0.0
        self._said: set[str] = set()

    async def aclose(self) -> None:
        """End what is under way, and close the connections."""
        self._question = None
        self._drop_question()
        self.rest()
        # An error of one must not keep the rest open.
        async with AsyncExitStack() as closing:
            while self._transports:
                closing.push_async_callback(self._transports.popitem()[1].aclose)

    # Which server it is ----------------------------------------------------------------------------------------------

    def ask(self, question: Ask) -> None:
        """Find out which server it is; an open question is dropped."""
        self._drop_question()
        if question.anew:
            self._known = Fingerprint()
        self._question = question
        self._drop_question = self._shared.start_task(partial(self._ask, question), _nothing)

    async def _ask(self, question: Ask) -> None:
        known, answered = self._known, False
        failure: Failure | None = _CANCELLED
        try:
            failure = _absence(await self._read(known), known)
            answered = not known.open
        finally:
            if self._question is question:
                self._question = None
                self._conclude(known)
                self._shared.tell(Asked(self._endpoint, answered, failure))

    async def find_out(self, *, anew: bool = False) -> tuple[ServerFacts | None, bool]:
        """Ask now which server it is, without a call under way; return its facts, and whether it answered.

        The client knows the facts afterwards, too. ``None``: this server is not to be asked.

        Args:
            anew: whatever it said before, which stands where it says nothing now.
        """
        if Page.SERVER not in self._transports:
            return None, False
        found = Fingerprint() if anew else self._known
        came = await self._read(found)
        if came is None or (anew and not found.heard):
            return self._known.facts(), False
        self._keep(found)
        is_there = _absence(came, found) is None
        if not is_there:
            # GETs in vain do not count.
            self._known = Fingerprint()
        return found.facts(), found.heard and is_there

    async def look(self) -> tuple[ServerFacts | None, ServerLoad | None, bool | None]:
        """Ask now which server it is and how busy it is; return both, and whether it answered either.

        ``None``: it is not to be asked.
        """
        if not self._transports:
            return None, None, None
        facts, answered = await self.find_out(anew=True)
        load, trouble = await self._look_at_load()
        # That there is no metrics page is an answer, too, where it is all that was asked.
        return facts, load, answered or load is not None or (facts is None and bool(trouble))

    @property
    def is_unheard(self) -> bool:
        """Whether the server may be asked which it is, and has not answered yet."""
        return Page.SERVER in self._transports and not self._known.heard

    async def meet(self, is_patient: Callable[[], bool]) -> Failure | None:
        """Wait until the server, if it may be asked, has said what it is; return why it has not.

        A silent server may be busy: it is asked again while ``is_patient()``.
        """
        if Page.SERVER not in self._transports:
            return None
        while True:
            found = self._known
            if not (found.heard or found.open):
                # Those who have asked so far have asked in vain.
                found = self._known = Fingerprint()
            came = await self._read(found)
            failure = _absence(came, found)
            if came is _NO_SERVER or (found.heard and failure is None):
                if came is not None:
                    self._keep(found)
                return None
            if came is not None and not (isinstance(came, (TimeoutError, ReadTimedOut)) and is_patient()):
                return failure or unheard(came)

    def adopt(self, found: Fingerprint) -> None:
        """Go on from pages which were read for another reason."""
        if not self._known.heard:
            self._keep(found)

    def _keep(self, found: Fingerprint) -> None:
        if Page.SERVER in self._transports:
            self._known = found
            self._conclude(found)
            if not found.open:
                self._shared.tell(Asked(self._endpoint, answered=True))

    async def _read(self, found: Fingerprint) -> _Came | None:
        """Read the pages that are left, if any; return the last one, or why it did not come."""
        page = None
        async with self._reading:
            while (request := found.next()) is not None:
                page = await self._fetch(Page.SERVER, request)
                if page is _NO_SERVER:
                    found.give_up()
                elif isinstance(page, ResponseTooLarge):
                    found.take(200, {}, b"")
                elif isinstance(page, Exception) or not found.take(*page):
                    break
        return page

    def _conclude(self, found: Fingerprint) -> None:
        facts = found.facts()
        # A header of any answer tells that a server takes no lists: before the next list.
        if facts.server is not None or facts.singly or (facts.dialect and not found.open):
            # Facts of a page still missing can be added later.
            self._shared.report_server(self._endpoint, facts)
        elif not found.open:
            message = "endpoint %d does not say which server it is; it is spoken to as before"
            self._shared.log("server_unknown", self._endpoint, message, self._endpoint)

    # How busy it is --------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """A batch is sent: look in a second whether the load is worth a question."""
        if Page.LOAD in self._transports:
            at = max(self._shared.backend.now() + self._shared.times.first_after_s, self._ask_load_at)
            self._shared.under_way[self._endpoint] = self
            self._end_watch = self._shared.backend.call_at(at, self._begin).cancel

    def rest(self) -> None:
        """No call is under way."""
        self._shared.under_way.pop(self._endpoint, None)
        self._end_watch()

    def _begin(self) -> None:
        self._end_watch = self._shared.start_task(self._watch, _nothing)

    async def _watch(self) -> None:
        shared, now = self._shared, self._shared.backend.now
        while shared.is_heeded(self._endpoint):
            asked_at = now()
            load, trouble = await self._look_at_load()
            took_s = now() - asked_at
            pause_s = _LONGEST_PAUSE_S
            if load is not None:
                self._silences = 0
                pause_s = max(shared.times.every_s, shared.times.pause_ratio * took_s)
                shared.tell(LoadReported(self._endpoint, load, took_s))
            elif trouble:
                shared.tell(LoadHidden(self._endpoint, f"shows no load ({trouble})"))
            else:
                self._silences += 1
                pause_s = 2.0 ** min(self._silences, 10)
            self._ask_load_at = asked_at + min(pause_s, _LONGEST_PAUSE_S)
            await anyio.sleep(max(0.0, self._ask_load_at - now()))
        # The next batch begins another watch.
        shared.under_way.pop(self._endpoint, None)

    async def _look_at_load(self) -> tuple[ServerLoad | None, str]:
        """Return the load, or why none comes for a while, told once, or neither: one may come next time."""
        load, trouble = await self._fetch_load()
        if trouble and trouble not in self._said:
            self._said.add(trouble)
            message = "no metrics page at endpoint %d (%s): its load is not watched"
            self._shared.log("metrics_page_absent", self._endpoint, message, self._endpoint, trouble, reason=trouble)
        return load, trouble

    async def _fetch_load(self) -> tuple[ServerLoad | None, str]:
        if self._known.facts().dialect in EMPTIED_BY_READING:
            return None, "reading it would empty it for others"
        page = await self._fetch(Page.LOAD, _METRICS)
        if isinstance(page, ResponseTooLarge):
            return None, f"it is over {LARGEST_PAGE_BYTES} bytes"
        if isinstance(page, Exception) or page is _NO_SERVER or page[0] == 429 or page[0] >= 500:
            return None, ""
        status, _, body = page
        if not 200 <= status < 300:
            return None, f"it answers {status}"
        load = parse_metrics(body, self._shared.model)
        return load, "" if load is not None else "nothing on it is known here"

    # A page ----------------------------------------------------------------------------------------------------------

    async def _fetch(self, page: Page, request: WireRequest) -> _Came:
        """Return a page, or why nothing came; something may come another time."""
        transport, timeout_s = self._transports.get(page), self._shared.times.timeout_s
        if transport is None:
            # It may not be asked, or the endpoint was removed meanwhile.
            return _NO_SERVER
        try:
            async with deadline(timeout_s):
                timeouts = Timeouts(connect_s=1.0, read_s=timeout_s, write_s=1.0)
                return await read_page(transport, request, timeouts, only_success=page is Page.LOAD)
        except (BatchClientError, TimeoutError) as error:
            return error
        except Exception as error:  # whatever a mocked transport raises: no call may suffer for it
            facts = {"page": request.path, "error": type(error).__name__}
            self._shared.log("question_failed", self._endpoint, "asking for %s failed: %s", *facts.values(), **facts)
            return _NO_SERVER


def _absence(came: _Came | None, found: Fingerprint) -> Failure | None:
    """Return why the server does not seem to be there, after the last page."""
    return None if came is None else absence(came, heard=found.heard)


def _nothing() -> None:
    """Do nothing."""
