"""The options of ``batchclient bench``, read: loads, settings, workload, times."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from batchclient._shell.descriptors import within_descriptors
from batchclient.bench.cell import Setting
from batchclient.bench.generator import Times
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import LISTS, Target, callers_of
from batchclient.bench.sweep import check_objectives, settings_of
from batchclient.cli._options import server_arguments
from batchclient.cli._prompts import Prompts, template_from
from batchclient.cli._refusal import Refusal
from batchclient.client import BatchClient
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow
from batchclient.jobs.output import reason_of
from batchclient.jobs.source import Source

__all__ = [
    "Question",
    "is_hosted",
    "reuse_from",
    "seconds_from",
    "settings_from",
    "slos_from",
    "target_from",
    "texts_of",
    "times_from",
]

_SIZES = "32"
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_MOST_PROMPTS = 100_000
_MOST_RATE = 100_000
_HOME_NETWORKS = (".local", ".internal", ".lan", ".svc", ".localdomain", ".test", ".localhost")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the measurement.

    Args:
        settings: of a sweep; empty where something is searched.
        slos: the objectives.
        times: the parts of a cell.
        find: what is searched; ``None``: a sweep.
        repeat: repetitions of a sweep.
        budget_s: no cell is begun that would end later, seconds; ``None``: no bound.
        left_out: the lists that no load has room for, in words; empty: none.
    """

    settings: Sequence[Setting]
    slos: tuple[Slo, ...]
    times: Times
    find: Literal["limit", "rate"] | None = None
    repeat: int = 1
    budget_s: float | None = None
    left_out: str = ""


def target_from(
    base_url: Sequence[str] | None, model: str | None, api_key: str | None, header: Sequence[str] | None
) -> tuple[Target, bool]:
    """Return the server that is measured, and whether a key is sent.

    Raises:
        Refusal: no server is named, or several are.
        ConfigError: an argument is wrong.
    """
    server = server_arguments(base_url, model, api_key, header)
    if len(server["base_url"]) > 1:
        raise Refusal("--base-url: a measurement is of one server")
    # Checks the arguments, and reads the key of the environment.
    client = BatchClient(**server)
    key = client._engine.settings.api_key
    return Target(
        server["base_url"][0], server["model"] or "", key, server["headers"]
    ), client._engine.connections.has_key


def seconds_from(option: str, text: str, *, may_be_zero: bool = True) -> float:
    """Read a duration: ``30``, ``90s``, ``15m``, ``1h``.

    Raises:
        Refusal: the text is none.
    """
    form = _DURATION.fullmatch(text.strip())
    if form is None:
        raise Refusal(f"{option}: a duration such as 30, 90s or 15m, not {text!r:.40}")
    seconds = float(form[1]) * _UNITS[form[2] or ""]
    if not (seconds or may_be_zero):
        raise Refusal(f"{option}: more than 0 seconds")
    return seconds


def times_from(window: str | None, warm_up: str | None, grace: str | None, *, quick: bool) -> Times:
    """Read the parts of a cell.

    Raises:
        Refusal: a duration is wrong, or a window has none.
    """
    defaults = ("2", "5", "10") if quick else ("5", "30", "60")
    options = (("--warm-up", warm_up), ("--for", window), ("--grace", grace))
    return Times(
        *(
            seconds_from(option, default if given is None else given, may_be_zero=option != "--for")
            for (option, given), default in zip(options, defaults, strict=True)
        )
    )


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


def reuse_from(text: str) -> float | None:
    """Read the share of each prompt that is the same for all; ``none`` is ``None``.

    Raises:
        Refusal: the text is no share.
    """
    if text == "none":
        return None
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise Refusal(f"--prefix-reuse: none, or a share from 0 to 1, not {text!r:.40}")
    return share


def slos_from(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Read objectives.

    Raises:
        Refusal: a text is none.
    """
    try:
        return tuple(map(Slo, texts))
    except ConfigError as error:
        raise Refusal(f"--{error.message}") from None


def settings_from(
    slos: Sequence[Slo], call: str, *, concurrency: str | None, sizes: str | None, strategies: str, rate: str | None
) -> tuple[list[Setting], str]:
    """Read the settings of a sweep.

    Returns:
        The settings, and in words which lists no load has room for.

    Raises:
        Refusal: an option is wrong, or has no effect.
    """
    chosen = list(dict.fromkeys(each.strip() for each in strategies.split(",")))
    limits, in_list = _numbers("--concurrency", concurrency), _numbers("--sizes", _SIZES if sizes is None else sizes)
    try:
        settings = settings_of(chosen, concurrency=limits, sizes=in_list, rates=_rates(rate))
        check_objectives(slos, chosen, call)
    except ConfigError as error:
        raise Refusal(f"--{error.message}") from None
    has_lists = bool(set(chosen) & set(LISTS))
    if sizes is not None and not has_lists:
        raise Refusal(f"--sizes: of {' and '.join(LISTS)}, and --strategies has neither of them")
    above = [size for size in in_list if limits and size > max(limits)]
    left_out = ""
    if has_lists and above:
        left_out = f"lists are left out: {_SIZES} prompts are above every number of --concurrency; --sizes has others"
        if sizes is not None or not settings:
            raise Refusal(f"--sizes: {', '.join(map(str, above))}: above every number of --concurrency")
    for setting in settings:
        if setting.concurrency is not None and setting.rate is None:
            callers = callers_of(setting)
            if (within := within_descriptors(callers, 1, warn_below=0)) < callers:
                raise Refusal(
                    f"--concurrency: {callers} calls at once need more open files; `ulimit -n` allows {within}"
                )
    return settings, left_out


def _numbers(option: str, text: str | None) -> list[int]:
    if text is None:
        return []
    numbers = [each.strip() for each in text.split(",")]
    if not all(each.isascii() and each.isdigit() and len(each) < 8 and int(each) for each in numbers):
        raise Refusal(f"{option}: whole numbers of at least 1, with commas between, not {text!r:.60}")
    return sorted(set(map(int, numbers)))


def _rates(text: str | None) -> list[float]:
    if text is None:
        return []
    try:
        rates = [float(each) for each in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < each < math.inf for each in rates):
        raise Refusal(f"--rate: calls per second above 0, with commas between, not {text!r:.60}")
    if max(rates) > _MOST_RATE:
        raise Refusal(f"--rate: {_MOST_RATE:,} calls per second at most; no machine makes more of them")
    return sorted(set(rates))


def is_hosted(url: str) -> bool:
    """Whether a URL is that of a host beyond the own machine and private networks."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        # A name without a dot is one of the own network.
        return "." in host and not host.endswith(_HOME_NETWORKS)
