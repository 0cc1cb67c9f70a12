"""``batchclient doctor``: what a server is, and the faults that make it slow for bulk work.

Rules:
- The diagnosis goes to stdout, faults too; only a wrong command is told on stderr.
- The status is 0 where nothing is to mend, 1 where something could be better, 5 where calls fail.
- Neither the key nor the query of the URL is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from batchclient._client.connections import shown
from batchclient._doctor.diagnosis import Diagnosis, diagnose
from batchclient._doctor.facts import Weight
from batchclient._doctor.faults import unheeded_proxy
from batchclient._doctor.machine import core_share
from batchclient._doctor.visit import Patient, visit
from batchclient.cli._options import ApiKey, Headers, Model, server_arguments
from batchclient.cli._refusal import Refusal, refusal_of
from batchclient.cli._words import put
from batchclient.client import BatchClient
from batchclient.errors import ConfigError
from batchclient.jobs.statuses import Status
from batchclient.transport._addresses import check_url

__all__ = ["doctor"]

_WORDS = {Weight.BROKEN: "broken", Weight.COSTLY: "costly", Weight.MINOR: "minor"}


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
    timeout: Annotated[
        float, typer.Option(min=1, max=3600, metavar="S", help="Seconds for each of the small requests.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Write the diagnosis as JSON.")] = False,
) -> Status:
    """Say what a server is and what is wrong with it for bulk work.

    The server gets GETs for its pages, and three small requests at most.
    """
    urls = [each for each in (url, base_url) if each] or os.environ.get("BATCHCLIENT_BASE_URL", "").split()
    if len(urls) != 1:
        raise Refusal("give URL: the doctor examines one server")
    diagnosis = asyncio.run(_examine(server_arguments(urls, model, api_key, header), timeout))
    if as_json:
        put(*json.dumps(diagnosis.as_json(), indent=2, ensure_ascii=False).split("\n"))
    else:
        put(*_lines_of(diagnosis))
    if not diagnosis.works:
        return Status.NO_SERVER
    return Status.FAILED if diagnosis.findings else Status.OK


async def _examine(arguments: Mapping[str, Any], timeout_s: float) -> Diagnosis:
    """Visit the server.

    Raises:
        Refusal: an argument is wrong.
    """
    # Checks the arguments; a wrong URL may be a key, and must not be shown.
    try:
        client = BatchClient(**arguments)
    except ConfigError as error:
        raise Refusal(str(refusal_of(error)).replace("--base-url", "URL", 1)) from None
    url = check_url(arguments["base_url"][0])
    connections = client._connections
    # Before the visit: the spin is no work of the visit's.
    share = core_share()
    transport = connections.for_detection(url)
    try:
        patient = Patient(
            url,
            shown(url),
            transport,
            arguments["model"],
            connections.secrets,
            has_key=connections.has_key,
            timeout_s=timeout_s,
            proxy=unheeded_proxy(url),
        )
        facts = await visit(patient)
    finally:
        await transport.aclose()
        await client.aclose()
    return diagnose(replace(facts, core_share=share))


def _lines_of(diagnosis: Diagnosis) -> list[str]:
    lines = [f"{diagnosis.facts.url}: {diagnosis.about()}"]
    for finding in diagnosis.findings:
        lines += [
            "",
            f"{_WORDS[finding.weight]}: {finding.sentence}",
            f"  change: {finding.setting}",
            f"  seen: {finding.seen}",
        ]
    if not diagnosis.findings:
        lines += ["", "nothing to mend"]
    if diagnosis.unknown:
        lines += ["", "not known:", *(f"  {question}" for question in diagnosis.unknown)]
    return lines
