"""The table of checks: the facts needed, when a server is found wanting, the sentence, the setting.

Rules:
- A check looks only where all its facts are there. Else it is not known, by ``unknown``, if the
  facts of such a server could have been there.
- A finding that rests on times or on counts has a clear margin; the numbers are named.
- A setting is that of the server's own sort, or of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from batchclient._doctor.facts import Facts, Lists, Weight

__all__ = ["CHECKS", "Check"]

_GENERATING = frozenset({"vllm", "sglang", "tgi", "llamacpp", "trtllm", "openai"})
_WITH_CAP = frozenset({"tgi", "tei"})
"""Servers that tell how many prompts a request may hold."""
_WITHOUT_LISTS: Mapping[Lists | None, str] = {
    Lists.REFUSED: "A list of {} prompts is refused",
    Lists.SOME_ANSWERED: "Of a list of {} prompts some have no answer",
    Lists.UNTRIED: "Such a server takes no lists, and none was tried",
}
_OWN_ROUTES = {"sglang": "/generate", "llamacpp": "/completion"}
"""Routes that lie beside ``/v1``, where a proxy may leave them out."""
_SHORT_CAP = 32
_MANY_SLOTS = 256
"""Sequences at once beyond which a GPU's arithmetic is the bound, not its memory."""
_FAR_ABOVE = 8
_LONG = 8192
"""A shorter model does no harm with its length."""
_LOW_SHARE = 0.85
_KV_LEFT = 0.5
_EVENTS = 16
_CORE_SHARE = 0.6
_PREEMPTED = 10
_CACHE_CONFIG = "vllm:cache_config_info, enable_prefix_caching"
_BEHIND = "base_url: the address of the server itself"


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the facts.

    Args:
        id: a short name, for programs.
        weight: how much a finding matters.
        needs: the names of facts without which nothing is known.
        is_wanting: whether the facts show the fault; called with all needs there.
        sentence: the finding.
        seen: on which the finding rests.
        settings: by kind of server, the setting to change; ``None``: any other kind.
        kinds: the kinds of server that are looked at; empty: all.
        unknown: the question that stays open without the facts; empty: none.
    """

    id: str
    weight: Weight
    needs: tuple[str, ...]
    is_wanting: Callable[[Facts], bool]
    sentence: Callable[[Facts], str]
    seen: Callable[[Facts], str]
    settings: Mapping[str | None, str | Callable[[Facts], str]]
    kinds: frozenset[str] = field(default_factory=frozenset)
    unknown: str = ""

    def setting(self, facts: Facts) -> str:
        """Return the setting to change on such a server."""
        made = self.settings.get(facts.kind, self.settings.get(None, ""))
        return made if isinstance(made, str) else made(facts)


def _more_slots(facts: Facts) -> int:
    return min(_MANY_SLOTS, facts.held or 0)


def _has_few_slots(facts: Facts) -> bool:
    return 0 < 2 * (facts.slots or 0) <= _more_slots(facts)


def _round_up(tokens: int) -> int:
    return 1 << max(10, (tokens - 1).bit_length())


def _length(option: str) -> Callable[[Facts], str]:
    return lambda facts: f"{option} {_round_up(2 * (facts.longest or 1))}, if longer calls are not expected"


CHECKS: tuple[Check, ...] = (
    Check(
        "url-without-v1",
        Weight.BROKEN,
        (),
        lambda facts: facts.lacks_v1,
        lambda _: "The URL does not end in /v1, where the server has its API: calls to this URL fail.",
        lambda _: "the API is missing at this URL, and answers below /v1",
        {None: lambda facts: f"base_url: {facts.url}/v1"},
    ),
    Check(
        "own-route-missing",
        Weight.BROKEN,
        (),
        lambda facts: facts.lacks_own_route,
        lambda facts: f"The server's own {_OWN_ROUTES.get(facts.kind or '', 'route')} is missing: calls fail.",
        lambda _: "a 404 to a small call, and an answer at /v1/completions",
        {None: lambda facts: f'let the proxy pass {_OWN_ROUTES.get(facts.kind or "", "it")}, or give dialect="openai"'},
    ),
    Check(
        "several-models",
        Weight.COSTLY,
        (),
        lambda facts: facts.model is None and len(facts.models) > 1,
        lambda facts: (
            f"The server has {len(facts.models)} models, and calls without a name fail: {_named(facts.models)}."
        ),
        lambda _: "/v1/models",
        {None: "--model, model=… or BATCHCLIENT_MODEL; the doctor then tries that model"},
    ),
    Check(
        "crowded",
        Weight.COSTLY,
        ("others",),
        lambda facts: facts.is_crowded,
        lambda facts: (
            f"A small call had no answer in time: {facts.others} sequences of others ran or waited before it."
        ),
        lambda _: "a small call, and /metrics before it",
        {None: "another time or server; --timeout, for a doctor that waits longer"},
    ),
    Check(
        "no-completions",
        Weight.COSTLY,
        (),
        lambda facts: facts.without_completions == "chat",
        lambda _: "The server has no /v1/completions: each chat is a request of its own.",
        lambda facts: f"{facts.refusal or '404'}; a chat was answered",
        {None: _BEHIND + ", if a gateway leaves the route out"},
    ),
    Check(
        "lists-refused",
        Weight.COSTLY,
        ("lists", "list_size"),
        lambda facts: facts.lists in _WITHOUT_LISTS,
        lambda facts: f"{_WITHOUT_LISTS[facts.lists].format(facts.list_size)}: each call is a request of its own.",
        lambda facts: facts.refusal if facts.lists is Lists.UNTRIED else f"the reply to the list: {facts.refusal}",
        {
            "vllm": f"VLLM_USE_RUST_FRONTEND=0, if that front end is in use; else {_BEHIND}",
            None: f"{_BEHIND}, or a server that takes lists, such as vLLM, SGLang or llama-server",
        },
        unknown="whether lists of prompts are taken",
    ),
    Check(
        "lists-over-bound",
        Weight.COSTLY,
        ("lists", "list_size"),
        lambda facts: facts.lists is Lists.OVER_BOUND,
        lambda facts: (
            f"The queue takes fewer than {facts.list_size} prompts: such a list is refused by an idle server."
        ),
        lambda facts: f"the replies to two lists: {facts.refusal}",
        {
            "vllm": "a larger --max-num-queued-reqs",
            "sglang": "a larger --max-queued-requests",
            None: "a larger --max-concurrent-requests, or the like",
        },
    ),
    Check(
        "lists-serial",
        Weight.COSTLY,
        ("serial", "list_size"),
        lambda facts: (facts.serial or 0) >= 2,  # a first time may be chance
        lambda facts: f"The prompts of a list of {facts.list_size} seem to be served one after the other.",
        lambda _: "two lists: no answer began before the one before had ended, and the time grew with the list",
        {
            "llamacpp": "llama-server --parallel 8, with -c eight times a sequence's length",
            "vllm": "--max-num-seqs above 1, without --max-num-active-seqs 1",
            "sglang": "--max-running-requests above 1",
            None: "a server with continuous batching; transformers serve: --continuous-batching",
        },
        kinds=_GENERATING,
        unknown="whether the prompts of a list are served together",
    ),
    Check(
        "lists-not-streamed",
        Weight.MINOR,
        ("lists", "streams"),
        lambda facts: facts.lists is Lists.PLAIN and bool(facts.streams),
        lambda _: "A streamed list is refused and a plain one taken: an answer waits for the slowest of its list.",
        lambda facts: f"the reply to the streamed list: {facts.refusal}",
        {None: _BEHIND},
        kinds=_GENERATING,
    ),
    Check(
        "lists-short",
        Weight.COSTLY,
        ("list_cap",),
        lambda facts: facts.list_cap is not None and facts.list_cap < _SHORT_CAP,
        lambda facts: f"A request may hold {facts.list_cap} prompts at most.",
        lambda facts: "/info, max_client_batch_size" if facts.kind in _WITH_CAP else "the reply to a list",
        {**dict.fromkeys(_WITH_CAP, "--max-client-batch-size 64"), None: _BEHIND},
    ),
    Check(
        "event-per-token",
        Weight.COSTLY,
        ("events", "tokens"),
        lambda facts: (facts.tokens or 0) >= _EVENTS and (facts.events or 0) >= 0.9 * (facts.tokens or 0),
        lambda facts: (
            f"A streamed answer of {facts.tokens} tokens came in {facts.events} events: the client's CPU pays for each."
        ),
        lambda _: "a streamed call that asked for few events",
        {
            "vllm": "vLLM 0.27 or newer, which heeds stream_interval; else --stream-interval 100",
            "sglang": "--stream-interval 100, where sampling_params.stream_interval is not heeded",
            "trtllm": "stream_interval: 100, in the file of --extra_llm_api_options",
        },
        kinds=frozenset({"vllm", "sglang", "trtllm"}),
        unknown="how many events a streamed answer has",
    ),
    Check(
        "streams-held-back",
        Weight.COSTLY,
        ("held_back",),
        lambda facts: bool(facts.held_back),
        lambda _: "Streams seem to be held back and sent in one piece at their end.",
        lambda _: "a streamed call and a streamed list: all events came in the last fiftieth of the time",
        {None: f"nginx: proxy_buffering off; else {_BEHIND}"},
    ),
    Check(
        "prefix-caching-off",
        Weight.COSTLY,
        ("prefix_caching",),
        lambda facts: facts.prefix_caching is False,
        lambda _: "Prefix caching is off: a beginning that prompts share is computed anew for each call.",
        lambda facts: "/server_info, disable_radix_cache" if facts.kind == "sglang" else _CACHE_CONFIG,
        {
            "vllm": "--enable-prefix-caching, without --no-enable-prefix-caching",
            "sglang": "start without --disable-radix-cache",
        },
        kinds=frozenset({"vllm", "sglang"}),
        unknown="whether beginnings of prompts are cached",
    ),
    Check(
        "few-sequences",
        Weight.COSTLY,
        ("slots", "held"),
        _has_few_slots,
        lambda facts: (
            f"{facts.slots} sequences run at once, and the KV cache holds {facts.held:,} of the lengths so far."
        ),
        lambda facts: (
            f"{facts.slots} slots of {facts.max_len:,} tokens; the longest sequence so far had {facts.longest:,}"
            if facts.kind == "llamacpp"
            else f"{facts.kv_tokens:,} KV tokens; {facts.served:,} requests of {facts.mean_len:,.0f} tokens on the mean"
        ),
        {
            "vllm": lambda facts: f"--max-num-seqs {_more_slots(facts)}",
            "sglang": lambda facts: f"--max-running-requests {_more_slots(facts)}",
            "llamacpp": lambda facts: f"--parallel {_more_slots(facts)}, with the same -c",
        },
        kinds=frozenset({"vllm", "sglang", "llamacpp"}),
        unknown="whether as many sequences may run as the KV cache holds",
    ),
    Check(
        "sequences-wait",
        Weight.COSTLY,
        ("queue",),
        lambda facts: facts.queue is not None and facts.queue.running > 0 and facts.queue.kv_usage < _KV_LEFT,
        lambda facts: (
            f"{facts.queue.waiting} sequences wait while {facts.queue.running} run and"
            f" {facts.queue.kv_usage:.0%} of the KV cache is in use."
            if facts.queue is not None
            else ""
        ),
        lambda _: "/metrics, on two pages",
        {
            "vllm": "a larger --max-num-seqs; if prompts are long, a larger --max-num-batched-tokens",
            "sglang": "a larger --max-running-requests",
        },
        kinds=frozenset({"vllm", "sglang"}),
    ),
    Check(
        "memory-share-low",
        Weight.COSTLY,
        ("kv_share", "preempted", "served"),
        lambda facts: (
            (facts.kv_share or 1) < _LOW_SHARE and (facts.preempted or 0) >= max(_PREEMPTED, 0.05 * (facts.served or 0))
        ),
        lambda facts: (
            f"The KV cache was full {facts.preempted:,} times, and the server may use {facts.kv_share:.0%} of memory."
        ),
        lambda facts: f"/metrics: {facts.preempted:,} preemptions in {facts.served:,} requests",
        {"vllm": "--gpu-memory-utilization 0.92", "sglang": "--mem-fraction-static 0.88"},
        kinds=frozenset({"vllm", "sglang"}),
    ),
    Check(
        "model-length-high",
        Weight.MINOR,
        ("max_len", "longest_of_many"),
        lambda facts: max(_LONG, _FAR_ABOVE * (facts.longest or 0)) <= (facts.max_len or 0),
        lambda facts: (
            f"The model's length is {facts.max_len:,} tokens, and no request so far had over {facts.longest:,}:"
            " a runaway answer may fill the KV cache."
        ),
        lambda facts: f"/metrics: the lengths of {facts.served:,} requests",
        {
            "vllm": _length("--max-model-len"),
            "tgi": _length("--max-total-tokens"),
        },
        kinds=frozenset({"vllm", "tgi"}),
        unknown="whether the model's length is far above the lengths asked for",
    ),
    Check(
        "no-metrics",
        Weight.COSTLY,
        ("tells_load",),
        lambda facts: facts.tells_load is False,
        lambda _: "No metrics page tells the load: the client cannot see a queue of others, or a dead engine.",
        lambda _: "GET /metrics",
        {
            "vllm": "start without --disable-log-stats, and let a proxy pass /metrics",
            "sglang": "--enable-metrics",
            "llamacpp": "--metrics",
            None: "let the gateway pass /metrics of the server behind",
        },
        kinds=_GENERATING | {"tei"},
        unknown="whether a metrics page tells the load",
    ),
    Check(
        "proxy",
        Weight.MINOR,
        (),
        lambda facts: bool(facts.proxies),
        lambda _: "A proxy stands before the server: it may cut long bodies, hold streams back and end long replies.",
        lambda facts: f"the headers of replies: {', '.join(facts.proxies)}",
        {None: f"{_BEHIND}; else nginx: client_max_body_size 64m, proxy_buffering off, proxy_read_timeout 1h"},
    ),
    Check(
        "tls",
        Weight.MINOR,
        ("tls_inside",),
        lambda facts: bool(facts.tls_inside),
        lambda _: "The way to a private address is encrypted: each connection shakes hands, and the client's CPU pays.",
        lambda _: "the URL",
        {None: "base_url: the server's http:// address, where the network is trusted"},
    ),
    Check(
        "client-bound",
        Weight.COSTLY,
        ("core_share",),
        lambda facts: (facts.core_share or 1) < _CORE_SHARE,
        lambda facts: (
            f"This process gets {facts.core_share:.0%} of a core: the client may be the bound before the server is."
        ),
        lambda _: "the best of three spins of 0.1 s on this machine",
        {None: "a free core for the client: a larger CPU quota, fewer processes beside it, another machine"},
    ),
)
"""All checks. Of equal weight, the first are told first."""


def _named(models: tuple[str, ...]) -> str:
    more = f" and {len(models) - 5} more" if len(models) > 5 else ""
    return ", ".join(name[:100] for name in models[:5]) + more
