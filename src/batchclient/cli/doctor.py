"""``batchclient doctor``: what a server is, and the faults that make it slow for bulk work.

Rules:
- The report goes to stdout, faults too; only a wrong command is named on stderr.
- The status is 0 where nothing of the server is to mend, 1 where its owner would change a setting,
  5 where calls fail.
- Neither the key nor the query of the URL is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any

import typer

from batchclient import BatchClient
from batchclient._doctor.examination import Page, Target, examine
from batchclient._doctor.report import Report, report_on
from batchclient._shell.pages import LARGEST_PAGE_BYTES, read_page
from batchclient.cli._log import unwritten
from batchclient.cli._options import ApiKey, Headers, Model, server_arguments
from batchclient.cli._refusal import Refusal, refusal_of
from batchclient.cli._words import put
from batchclient.errors import ConfigError, ReadTimedOut
from batchclient.jobs.statuses import Status
from batchclient.retry import Backoff
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport._proxies import proxy_variable
from batchclient.transport.http import HttpTransport

__all__ = ["doctor"]

_PAGE_S = 10.0
_LEAST_SECRET = 6
"""Characters: a shorter value of a header is cut out of no name."""


def doctor(
    *,
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="The server's root with its /v1. Default: BATCHCLIENT_BASE_URL."),
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="The same as URL.")] = None,
    model: Model = None,
    api_key: ApiKey = None,
    header: Headers = None,
    timeout: Annotated[float, typer.Option(min=1, max=3600, metavar="S", help="Seconds for each small call.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Write the diagnosis as JSON.")] = False,
) -> Status:
    """Say what a server is and what is wrong with it for bulk work.

    The server gets GETs for its pages, a small call and a list of eight, which is sent once more if
    it seemed to be served serially.
    """
    urls = [each for each in (url, base_url) if each] or os.environ.get("BATCHCLIENT_BASE_URL", "").split()
    if len(urls) != 1:
        raise Refusal("give URL: the doctor examines one server")
    with unwritten():
        report = asyncio.run(_examine(server_arguments(urls, model, api_key, header), timeout))
    if as_json:
        put(*json.dumps(report.as_json(), indent=2, ensure_ascii=False).split("\n"))
    else:
        put(*report.lines())
    if not report.works:
        return Status.NO_SERVER
    return Status.FAILED if report.concerns_server else Status.OK


async def _examine(arguments: Mapping[str, Any], timeout_s: float) -> Report:
    """Examine the server.

    Raises:
        Refusal: an argument is wrong.
    """
    retry, key = Backoff(max_attempts=1), arguments["api_key"] or os.environ.get("BATCHCLIENT_API_KEY")

    def connect(url: str) -> BatchClient:
        return BatchClient(**{**arguments, "base_url": url}, retry=retry)

    # Checks the arguments; a wrong URL may be a key, and must not be shown.
    url = arguments["base_url"][0].rstrip("/")
    try:
        client = connect(url)
    except ConfigError as error:
        raise Refusal(str(refusal_of(error)).replace("--base-url", "URL", 1)) from None
    shown = client.statistics().endpoints[0].base_url
    headers = {name.lower(): value for name, value in arguments["headers"].items()}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    async with client, aclosing(HttpTransport(url, headers, max_response_bytes=LARGEST_PAGE_BYTES)) as transport:

        async def fetch(request: WireRequest) -> Page:
            try:
                return await read_page(transport, request, Timeouts(read_s=_PAGE_S), _PAGE_S, _PAGE_S)
            except TimeoutError:
                raise ReadTimedOut(f"no whole page within {_PAGE_S:g} s") from None

        secrets = tuple(each for each in (key, *headers.values()) if each and len(each) >= _LEAST_SECRET)
        model, has_key = arguments["model"] or os.environ.get("BATCHCLIENT_MODEL"), "authorization" in headers
        target = Target(url, shown, connect, fetch, model, has_key, secrets, timeout_s, proxy_variable(url))
        return report_on(await examine(target))
