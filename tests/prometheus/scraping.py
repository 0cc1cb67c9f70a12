"""A Prometheus beside a client with traffic, and what its panels then lack."""

import asyncio
import time
from contextlib import contextmanager

from batchclient._metrics.dashboards import alerts_of, panels_of, rules_of
from batchclient.integrations.prometheus import serve
from tests.fakes.pages import serving
from tests.prometheus.pages import of_a_server, traffic
from tests.prometheus.programs import LONGEST_S, SCRAPED_EVERY_S, PrometheusServer

SCRAPES_OF_THE_FIRST_PAGE = 2


@contextmanager
def recorded(*names):
    """A server of recorded pages; each has its second scrape after some of the first."""

    def answer(asked):
        number = len(server.asked) > SCRAPES_OF_THE_FIRST_PAGE
        page = "".join(of_a_server(name)[number] for name in names)
        return 200, page.encode(), {"content-type": "text/plain; version=0.0.4"}

    with serving(answer) as server:
        yield f"127.0.0.1:{server.port}"


def empty_panels(prometheus, panels):
    """The queries that have no number now."""
    return [
        f"{panel.title}: {query}"
        for panel in panels
        for query in panel.queries.values()
        if not any(number == number for number in prometheus.numbers(query))
    ]


async def watched(client, servers, folder, *parts):
    """Scrape a client with traffic until no panel is empty; return what is still wrong at the end."""
    panels, rules = list(panels_of(["client", *parts])), rules_of(alerts_of(["client", *parts]))
    with serve(client, 0, client_name="one") as pages:
        targets = {"client": pages.url.removeprefix("http://"), **servers}
        with PrometheusServer(folder, targets, rules) as prometheus:
            deadline = time.monotonic() + LONGEST_S
            while not (await asyncio.to_thread(prometheus.get, "targets"))["activeTargets"]:
                # It looks for its targets 5 s after it began.
                assert time.monotonic() < deadline, "no target was found"
                await asyncio.sleep(SCRAPED_EVERY_S)
            while True:
                await traffic(client, bad=[10**9])
                wrong = await asyncio.to_thread(empty_panels, prometheus, panels)
                wrong += await asyncio.to_thread(prometheus.complaints)
                if not wrong or time.monotonic() > deadline:
                    return wrong
                await asyncio.sleep(SCRAPED_EVERY_S)
