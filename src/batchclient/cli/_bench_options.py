"""The options of ``batchclient bench``, read: loads, settings, workload, times."""

from __future__ import annotations

import ipaddress
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from batchclient._shell.descriptors import within_descriptors
from batchclient.bench.cell import Setting
from batchclient.bench.generator import Times
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import LISTS, callers_of, has_first_tokens
from batchclient.bench.sweep import settings_of
from batchclient.bench.workload import Workload
from batchclient.cli._corpus import docstrings
from batchclient.cli._prompts import Prompts, template_from
from batchclient.cli._refusal import Refusal, one_of, refusal_of, refusal_of_file
from batchclient.errors import ConfigError
from batchclient.jobs.output import reason_of
from batchclient.jobs.rows import BadRow
from batchclient.jobs.source import open_source

__all__ = ["Question", "is_hosted", "question_from", "seconds_from", "times_from", "workload_from"]

_CALLS: tuple[Literal["complete", "chat", "embed"], ...] = ("complete", "chat", "embed")
_LOADS: tuple[Literal["closed", "poisson"], ...] = ("closed", "poisson")
_OVER: tuple[Literal["limit", "rate"], ...] = ("limit", "rate")
_CONCURRENCY, _SIZES, _STRATEGIES = "8,32,128", "32", "adaptive,lists,async-openai"
_QUICK_STRATEGIES = "adaptive,async-openai"
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_MOST_PROMPTS = 100_000
_MOST_RATE = 100_000
_CORPUS = 5000
_SEEDS = 2**31
_HOME_NETWORKS = (".local", ".internal", ".lan", ".svc", ".localdomain", ".test", ".localhost")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the measurement.

    Args:
        settings: of a sweep; empty where something is searched.
        slos: the objectives.
        find: what is searched; ``None``: a sweep.
        repeat: repetitions of a sweep.
        times: the parts of a cell.
        budget_s: no cell is begun that would end later, seconds; ``None``: no bound.
        burstiness: of the arrivals of open loads.
        left_out: the lists that no load has room for, in words; empty: none.
    """

    settings: Sequence[Setting]
    slos: tuple[Slo, ...]
    find: Literal["limit", "rate"] | None
    repeat: int
    times: Times = Times()  # noqa: RUF009  # frozen
    budget_s: float | None = None
    burstiness: float = 1.0
    left_out: str = ""


def seconds_from(option: str, text: str) -> float:
    """Read a duration: ``30``, ``90s``, ``15m``, ``1h``.

    Raises:
        Refusal: the text is none.
    """
    form = _DURATION.fullmatch(text.strip())
    if form is None:
        raise Refusal(f"{option}: a duration such as 30, 90s or 15m, not {text!r:.40}")
    return float(form[1]) * _UNITS[form[2] or ""]


def times_from(window: str | None, warm_up: str | None, grace: str | None, *, quick: bool) -> Times:
    """Read the parts of a cell.

    Raises:
        Refusal: a duration is wrong, or a window has none.
    """
    defaults = ("5", "2", "10") if quick else ("30", "5", "60")
    options = (("--for", window), ("--warm-up", warm_up), ("--grace", grace))
    window_s, warm_up_s, grace_s = (
        seconds_from(option, default if given is None else given)
        for (option, given), default in zip(options, defaults, strict=True)
    )
    if not window_s:
        raise Refusal("--for: more than 0 seconds")
    return Times(warm_up_s, window_s, grace_s)


def workload_from(
    *,
    prompts: str | None,
    prompt: str | None,
    prompt_tokens: int | None,
    output_tokens: int | None,
    spread: float | None,
    corpus: bool,
    prefix_reuse: str,
    call: str,
    seed: int | None,
) -> Workload:
    """Read the workload. Without a seed one is drawn.

    A server's prefix cache has the prompts of the run before, which had another seed.

    Raises:
        Refusal: an option is wrong, or does not go with another.
    """
    ways = [("--prompts", prompts is not None), ("--prompt-tokens", prompt_tokens is not None), ("--corpus", corpus)]
    given = [option for option, is_given in ways if is_given]
    if len(given) > 1:
        raise Refusal(f"{given[1]}: not with {given[0]}; one of them says what the prompts are")
    if prompt is not None and prompts is None:
        raise Refusal("--prompt: the template of --prompts, which is not given")
    if spread is not None and given and given[0] != "--prompt-tokens":
        raise Refusal(f"--spread: of drawn prompts; those of {given[0]} have lengths of their own")
    if output_tokens is not None and call == "embed":
        raise Refusal("--output-tokens: --call embed generates nothing")
    own: list[str] | None = None
    if prompts is not None:
        own = _texts_of(prompts, prompt)
    elif corpus:
        own = docstrings(_CORPUS)
    try:
        return Workload(
            prompt_tokens=prompt_tokens or 256,
            output_tokens=output_tokens or 128,
            spread=spread or 0.0,
            prefix_reuse=_reuse_from(prefix_reuse),
            call=one_of("--call", call, _CALLS),
            prompts=own,
            seed=secrets.randbelow(_SEEDS) if seed is None else seed,
        )
    except ConfigError as error:
        raise refusal_of(error) from None


def _texts_of(path: str, template: str | None) -> list[str]:
    """Return the prompts of a file's rows, as ``map`` makes them."""
    rendered = Prompts(template_from(template or "{text}", None), "complete")
    make = rendered.function()
    try:
        with open_source(path) as source:
            first = source.first()
            if first is None:
                raise Refusal(f"--prompts: {path} has no row")
            rendered.check_first(first, source)
            texts = []
            for row in source.read():
                if row.fault is not None:
                    raise Refusal(f"--prompts: {path}: {row.fault}")
                try:
                    texts.append(make(row))
                except ConfigError as error:
                    raise Refusal(f"--prompts: {path}: line {row.line}: {error.message}") from None
                if len(texts) == _MOST_PROMPTS:
                    break
            return texts
    except ConfigError as error:
        raise refusal_of_file(error) from None
    except BadRow as error:
        raise Refusal(f"--prompts: {path}: {error}") from None
    except OSError as error:
        raise Refusal(f"--prompts: {path}: {reason_of(error)}") from None


def _reuse_from(text: str) -> float | None:
    if text == "none":
        return None
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise Refusal(f"--prefix-reuse: none, or a share from 0 to 1, not {text!r:.40}")
    return share


def question_from(
    *,
    concurrency: str | None,
    sizes: str | None,
    strategies: str | None,
    load: str | None,
    rate: str | None,
    burstiness: float | None,
    slo: Sequence[str],
    find: str | None,
    repeat: int | None,
    quick: bool,
    call: str,
) -> Question:
    """Read what is to be measured.

    Raises:
        Refusal: an option is wrong, or does not go with another.
    """
    try:
        slos = tuple(map(Slo, slo))
    except ConfigError as error:
        raise Refusal(f"--{error.message}") from None
    if burstiness is not None and not 0 < burstiness < math.inf:
        raise Refusal("--burstiness: a number above 0")
    if burstiness is not None and rate is None and find != "rate":
        raise Refusal("--burstiness: of the arrivals of --rate or --find rate, which is not given")
    if find is not None:
        sweep = (concurrency, sizes, strategies, rate, load, repeat)
        question = _searched(one_of("--find", find, _OVER), slos, call, sweep=sweep)
        return replace(question, burstiness=burstiness or 1.0)
    is_open = rate is not None
    if load is not None and (one_of("--load", load, _LOADS) == "poisson") != is_open:
        raise Refusal("--load: poisson needs --rate" if load == "poisson" else "--load: closed has no --rate")
    if concurrency is None and not is_open:
        concurrency = _CONCURRENCY
    if strategies is None:
        strategies = _QUICK_STRATEGIES if quick else _STRATEGIES
    chosen = [each.strip() for each in strategies.split(",")]
    limits, in_list = _numbers("--concurrency", concurrency), _numbers("--sizes", _SIZES if sizes is None else sizes)
    try:
        settings = settings_of(list(dict.fromkeys(chosen)), concurrency=limits, sizes=in_list, rates=_rates(rate))
    except ConfigError as error:
        raise Refusal(f"--{error.message}") from None
    left_out = ""
    if sizes is not None or not settings:
        _check_sizes(in_list, limits, chosen)
    elif set(chosen) & set(LISTS) and not any(setting.size for setting in settings):
        left_out = f"lists are left out: {_SIZES} prompts are above every number of --concurrency; --sizes has others"
    for setting in settings:
        for each in slos:
            if each.measure != "latency" and not has_first_tokens(setting.strategy, call):
                raise Refusal(
                    f"--slo {each.text}: {setting.strategy} tells no first tokens; leave it out of --strategies"
                )
        _check_descriptors(setting)
    times = repeat or (1 if quick else 3)
    return Question(settings, slos, None, times, burstiness=burstiness or 1.0, left_out=left_out)


def _check_sizes(sizes: Sequence[int], limits: Sequence[int], strategies: Sequence[str]) -> None:
    """Refuse sizes that no setting of the sweep has.

    Raises:
        Refusal: names the size, or the strategies.
    """
    if not set(strategies) & set(LISTS):
        raise Refusal(f"--sizes: of {' and '.join(LISTS)}, and --strategies has neither of them")
    if limits and (above := [size for size in sizes if size > max(limits)]):
        raise Refusal(f"--sizes: {', '.join(map(str, above))}: above every number of --concurrency")


def _searched(
    over: Literal["limit", "rate"], slos: tuple[Slo, ...], call: str, *, sweep: tuple[object, ...]
) -> Question:
    options = ("--concurrency", "--sizes", "--strategies", "--rate", "--load", "--repeat")
    for option, given in zip(options, sweep, strict=True):
        if given is not None:
            raise Refusal(f"{option}: not with --find, which chooses the measurements itself")
    if over == "rate" and not slos:
        raise Refusal("--find rate needs an objective, such as --slo 'p95<400ms'")
    for each in slos:
        if each.measure != "latency" and call == "embed":
            raise Refusal(f"--slo {each.text}: a vector has no first token")
    return Question((), slos, over, 1)


def _check_descriptors(setting: Setting) -> None:
    if setting.concurrency is None or setting.rate is not None:
        return
    callers = callers_of(setting)
    within = within_descriptors(callers, 1, warn_below=0)
    if within < callers:
        raise Refusal(f"--concurrency: {callers} calls at once need more open files; `ulimit -n` allows {within}")


def _numbers(option: str, text: str | None) -> list[int]:
    if text is None:
        return []
    numbers = []
    for each in text.split(","):
        number = each.strip()
        if not (number.isascii() and number.isdigit() and 0 < len(number) < 8 and int(number)):
            raise Refusal(f"{option}: whole numbers of at least 1, with commas between, not {text!r:.60}")
        numbers.append(int(number))
    return sorted(set(numbers))


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
