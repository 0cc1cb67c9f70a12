"""The options of ``batchclient bench``, read: durations, lists of numbers, objectives, prompts."""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import typer

from batchclient import BatchClient, ConfigError
from batchclient._common.descriptors import within_descriptors
from batchclient.bench import Setting, Slo
from batchclient.bench.strategies import Target, callers_of
from batchclient.bench.sweep import check_objectives, settings_of
from batchclient.cli._options import server_arguments
from batchclient.cli._prompts import Prompts, template_from
from batchclient.cli._refusal import Refusal, refusal_of
from batchclient.jobs import BadRow
from batchclient.jobs.output import reason_of
from batchclient.jobs.source import Source

__all__ = [
    "is_hosted",
    "read_duration",
    "read_numbers",
    "read_rates",
    "read_share",
    "read_slo",
    "settings_from",
    "target_from",
    "texts_of",
]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_MOST_PROMPTS = 100_000
_MOST_RATE = 100_000
_HOME_NETWORKS = (".local", ".internal", ".lan", ".svc", ".localdomain", ".test", ".localhost")


def target_from(
    base_url: Sequence[str] | None, model: str | None, api_key: str | None, header: Sequence[str] | None
) -> tuple[Target, bool]:
    """Return the server that is measured, and whether a key is sent.

    Raises:
        Refusal: no server is named, or several are; or an argument is wrong.
    """
    server = server_arguments(base_url, model, api_key, header)
    if len(server["base_url"]) > 1:
        raise Refusal("--base-url: a measurement is of one server")
    try:
        BatchClient(**server)
    except ConfigError as error:
        raise refusal_of(error) from None
    key = server["api_key"] or os.environ.get("BATCHCLIENT_API_KEY") or None
    named = server["model"] or os.environ.get("BATCHCLIENT_MODEL") or None
    headers = {name.lower() for name in server["headers"]}
    return Target(server["base_url"][0], named, key, server["headers"]), bool(key or "authorization" in headers)


# Values of options: a wrong one is refused by the option's name ---------------------------------------------------


def read_duration(text: str) -> float:
    """Read ``30``, ``90s``, ``15m`` or ``1h``; return seconds."""
    form = _DURATION.fullmatch(text.strip())
    if form is None:
        raise typer.BadParameter(f"a duration such as 30, 90s or 15m, not {text!r:.40}")
    return float(form[1]) * _UNITS[form[2] or ""]


def read_numbers(text: str) -> list[int]:
    """Read whole numbers with commas between; return them ascending, each once."""
    numbers = [each.strip() for each in text.split(",")]
    if not all(each.isascii() and each.isdigit() and len(each) < 8 and int(each) for each in numbers):
        raise typer.BadParameter(f"whole numbers of at least 1, with commas between, not {text!r:.60}")
    return sorted(set(map(int, numbers)))


def read_rates(text: str) -> list[float]:
    """Read calls per second with commas between; return them ascending, each once."""
    try:
        rates = [float(each) for each in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < each < math.inf for each in rates):
        raise typer.BadParameter(f"calls per second above 0, with commas between, not {text!r:.60}")
    if max(rates) > _MOST_RATE:
        raise typer.BadParameter(f"{_MOST_RATE:,} calls per second at most; no machine makes more of them")
    return sorted(set(rates))


def read_share(text: str) -> float:
    """Read a share; ``none`` is not a number."""
    try:
        share = math.nan if text == "none" else float(text)
    except ValueError:
        share = -1.0
    if share < 0 or share > 1:
        raise typer.BadParameter(f"none, or a share from 0 to 1, not {text!r:.40}")
    return share


def read_slo(text: str) -> Slo:
    """Read an objective."""
    try:
        return Slo(text)
    except ConfigError as error:
        raise typer.BadParameter(error.message.removeprefix("slo: ")) from None


# Of several options -----------------------------------------------------------------------------------------------


def settings_from(
    slos: Sequence[Slo],
    call: str,
    *,
    concurrency: Sequence[int],
    sizes: Sequence[int] | None,
    strategies: str,
    rates: Sequence[float],
) -> tuple[list[Setting], str]:
    """Return the settings of a sweep, and in words which lists no load has room for.

    Raises:
        Refusal: an option is wrong, or has no effect.
    """
    chosen, in_list = list(dict.fromkeys(each.strip() for each in strategies.split(","))), sizes or (32,)
    try:
        settings = settings_of(chosen, concurrency=concurrency, sizes=in_list, rates=rates)
        check_objectives(slos, chosen, call)
    except ConfigError as error:
        raise Refusal(f"--{error.message}") from None
    if sizes is not None and "lists" not in chosen:
        raise Refusal("--sizes: of lists, and --strategies has none")
    above = [size for size in in_list if concurrency and size > max(concurrency)]
    if "lists" in chosen and above and (sizes is not None or not settings):
        raise Refusal(f"--sizes: {', '.join(map(str, above))}: above every number of --concurrency")
    most = max((callers_of(each) for each in settings if each.rate is None), default=0)
    if (within := within_descriptors(most, 1, warn_below=0)) < most:
        raise Refusal(f"--concurrency: {most} calls at once need more open files; `ulimit -n` allows {within}")
    if "lists" not in chosen or not above:
        return settings, ""
    lists = ", ".join(map(str, above))
    return settings, f"lists are left out: {lists} prompts are above every number of --concurrency; --sizes has others"


def texts_of(path: str, template: str) -> list[str]:
    """Return the prompts of a file's rows, as ``map`` makes them.

    Raises:
        Refusal: the file cannot be read, or a row makes no prompt; the message names its line.
    """
    prompts = Prompts(template_from(template, None), "complete")
    texts: list[str] = []
    try:
        with Source(path) as source:
            first = source.first()
            if first is None:
                raise Refusal(f"--prompts: {path} has no row")
            prompts.check_first(first, source)
            for row in source.read():
                if row.fault is not None:
                    raise BadRow(row.fault)
                try:
                    texts.append(prompts.read(row).item)
                except ConfigError as error:
                    raise BadRow(f"{row.where}: {error.message}") from None
                if len(texts) == _MOST_PROMPTS:
                    break
    except OSError as error:
        raise Refusal(f"--prompts: {path}: {reason_of(error)}") from None
    except BadRow as error:
        raise Refusal(f"--prompts: {path}: {error}") from None
    return texts


def is_hosted(url: str) -> bool:
    """Whether a URL is that of a host beyond the own machine and private networks."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        # A name without a dot is one of the own network.
        return "." in host and not host.endswith(_HOME_NETWORKS)
