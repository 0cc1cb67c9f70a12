"""Which server is behind a URL, from at most three plain GETs: the next page to ask for, and the
facts told by the pages.

Rules:
- ``/models`` comes first: nearly every server has the page, and ``owned_by`` names most servers. A
  named server is asked for a page that only its sort has (``/version``, ``/server_info``,
  ``/props``). A server that names nobody is asked for ``/info``.
- Any bytes are read without an exception. Unknown values are ignored; nothing is guessed from a
  body that is half right.
- A refused page (401, 403) ends the questions: the other pages would be refused, too. A 503 and its
  like tell nothing at all.
- Three GETs are the budget of a finding, GETs without an answer included.
- Some servers take one prompt per request, and a list may kill them. They name no owner: the rows
  of ``_singly`` know them.
- SGLang and llama.cpp are called at routes of their own, below the root. Where a proxy lets ``/v1``
  alone through, their pages there are absent, too: the server counts as unknown.

Sources (``servers.md`` sections 0, 1 and 4 of the project's notes; pages in ``tests/wire``):
- vLLM 0.32: ``owned_by: "vllm"`` (``entrypoints/serve/engine/protocol.py``), ``max_model_len``,
  ``root``, ``parent`` of a LoRA; ``/version``.
- SGLang 0.5.23: ``owned_by: "sglang"``, ``max_model_len``; ``/server_info`` (before:
  ``/get_server_info``) with the server's arguments and ``internal_states``. The states hold the
  effective ``max_running_requests`` of each data-parallel rank.
- llama.cpp ``tools/server``: ``owned_by: "llamacpp"``, ``meta.n_ctx``; ``/props`` with
  ``total_slots`` and ``default_generation_settings.n_ctx``, a slot's length. Every reply has
  ``Server: llama.cpp``.
- TensorRT-LLM ``serve/openai_protocol.py``: ``owned_by: "tensorrt_llm"``; ``/version``.
- TGI 3.3 and TEI 1.9: ``/info`` with ``max_client_batch_size`` and ``max_concurrent_requests``;
  TGI's has ``max_total_tokens``, TEI's ``max_input_length`` and ``model_type``. TGI's ``owned_by``
  is the model's own name; TEI has no ``/models``.
- mlx_lm 0.32 ``server.py``: a ``BaseHTTPRequestHandler``, which sends ``Server: BaseHTTP/0.6
  Python/3.12``; a list of prompts ends its generating thread, and all calls get 404 from then on.
- transformers 5.24 ``cli/serving``: a list is a 400 (``completion.py``). A model's ``owned_by`` is
  the first part of its name, ``"local"`` or empty, and its ``status`` has ``value`` alone
  (``model_manager.py``); llama.cpp's router and its like have other owners.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json

from batchclient._core.kinds import Kind
from batchclient.health import TAGS
from batchclient.transport import WireRequest

__all__ = ["Fingerprint", "ServedModel", "ServerFacts"]

_MOST_PAGES = 3
_MODELS = "/models"
_OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "tensorrt_llm": "trtllm",
    "TensorRT-LLM": "trtllm",
}
"""By ``owned_by`` in ``/models``: the dialect's name."""
_NEXT = {
    "vllm": ("/version",),
    "sglang": ("/server_info", "/get_server_info"),
    "llamacpp": ("/props",),
    "trtllm": ("/version",),
    None: ("/info",),
}
"""By the server named in ``/models``: the pages to ask for until one answers."""
_SIGNS = {
    "tgi": ("max_concurrent_requests", "max_total_tokens"),
    "tei": ("max_concurrent_requests", "max_input_length", "max_batch_tokens"),
}
"""By the dialect's name: the numbers by which an ``/info`` is such a server's; the first counts."""
_TOLD = {
    "sglang": {"slots": "max_running_requests"},
    "llamacpp": {"slots": "total_slots", "max_len": "default_generation_settings.n_ctx"},
    "tgi": {"slots": "max_concurrent_requests", "max_len": "max_total_tokens", "cap": "max_client_batch_size"},
    # No length: longer inputs are cut by default (``auto_truncate``).
    "tei": {"slots": "max_concurrent_requests", "cap": "max_client_batch_size"},
}
"""The fields of a server's own page that tell a fact, with dots between names."""
_POOLED = (Kind.EMBEDDING, Kind.SCORE, Kind.RERANK, Kind.CLASSIFICATION, Kind.TOKENS)
_CAPPED: Mapping[str, tuple[Kind, ...]] = {"tgi": (Kind.COMPLETION,), "tei": _POOLED}
_CALLED_BELOW_ROOT = frozenset({"sglang", "llamacpp"})
_REFUSES = frozenset({"tgi", "tei"})
"""Servers that refuse requests beyond the number they name (``max_concurrent_requests``)."""
_LATER = frozenset({408, 425, 429, 502, 503, 504})
"""The server is busy, is loading its model (llama.cpp) or is missing behind its proxy. 500 is no
member: transformers serve answers 500 for good.
"""
_ON_PYTHONS_SERVER = "it is built on Python's http.server, as mlx_lm.server is"
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,39}")
_OLD_VLLM = re.compile(r"0\.(\d|1\d|2[0-6])\.\d")
"""Before 0.27 ``stream_interval`` is ignored. A build of no release calls itself 0.1.dev."""
_BEFORE_STRUCTURED = re.compile(r"0\.(\d|10)\.\d")
"""Before 0.11 vLLM has ``guided_json`` and its kin alone."""
_BEFORE_BUDGETS = re.compile(r"0\.(\d|1[0-8])\.\d")
"""Before 0.19 vLLM drops ``thinking_token_budget``."""
_LONGEST_NAME = 512
_MOST_MODELS = 1024
_LARGEST_NUMBER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model named by a server.

    Args:
        id: the model's name in calls.
        max_len: prompt and answer together, tokens; ``None``: not told.
        parent: of a LoRA adapter, the base model's name.
        root: the model that was loaded; equal for two names of one model.
    """

    id: str
    max_len: int | None = None
    parent: str | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The facts told by a server's pages.

    Args:
        dialect: the name of the server's dialect. ``"openai"``: the server lists models as OpenAI
            does, and names no known server. ``None``: nothing was understood.
        version: as told by the server.
        models: the models named by the server.
        max_len: of any model, under whatever name, tokens (llama.cpp, TGI).
        caps: inputs per request, by kind of call, where told.
        slots: sequences taken or run at once, where told.
        singly: why no request may hold several inputs; empty: lists are tried.
        bounds_thinking: whether it was started to bound a model's thinking (SGLang).
        thinks_in: the tag by which the model's thinking begins, by its chat template (llama.cpp).
    """

    dialect: str | None = None
    version: str | None = None
    models: tuple[ServedModel, ...] = ()
    max_len: int | None = None
    caps: Mapping[Kind, int] = field(default_factory=dict)
    slots: int | None = None
    singly: str = ""
    bounds_thinking: bool = False
    thinks_in: str = ""

    def __str__(self) -> str:
        lengths = [model.max_len for model in self.models if model.max_len is not None] + [self.max_len or 0]
        said = {
            "models": len(self.models),
            "length": max(lengths),
            "slots": self.slots or 0,
            "inputs per request": min(self.caps.values(), default=0),
        }
        more = [f"{name} {number}" for name, number in said.items() if number]
        return "; ".join([self.server or "none of the servers that are known", *more])

    @property
    def takes(self) -> int | None:
        """The most sequences to have in flight; ``None``: not told.

        An eighth of the server's own bound is left free where the server refuses more.
        """
        if self.slots is None or self.dialect not in _REFUSES:
            return self.slots
        return max(1, self.slots - self.slots // 8)

    @property
    def known(self) -> str | None:
        """The dialect's name if the server is known by name."""
        return self.dialect if self.dialect != "openai" else None

    @property
    def event_per_token(self) -> bool | None:
        """Whether streams send an event per token in any case; ``None``: not told."""
        old = self.dialect == "tgi" or (self.dialect == "vllm" and _OLD_VLLM.match(self.version or ""))
        return True if old else None

    @property
    def lacks(self) -> frozenset[str]:
        """Fields that this version does not know, and other versions of the server do."""
        if self.dialect != "vllm":
            return frozenset()
        version = self.version or ""
        lacks = {"structured_outputs": _BEFORE_STRUCTURED, "thinking_token_budget": _BEFORE_BUDGETS}
        return frozenset(name for name, before in lacks.items() if before.match(version))

    @property
    def has(self) -> frozenset[str]:
        """Fields that this server was started for, and others of its sort were not."""
        return frozenset({"thinking_budget"}) if self.dialect == "sglang" and self.bounds_thinking else frozenset()

    @property
    def server(self) -> str | None:
        """The server's name to show, such as ``"vllm 0.32.0"``; ``None``: no known server."""
        return f"{self.known} {self.version}" if self.known and self.version else self.known

    def length_of(self, model: str) -> int | None:
        """Return a model's length, tokens; ``None``: not told."""
        return next((served.max_len for served in self.models if served.id == model and served.max_len), self.max_len)

    def base_models(self) -> list[str]:
        """Return the models a call may mean without a name: no LoRA adapters, no second names."""
        if self.dialect == "tgi":
            # TGI takes every other name for a LoRA adapter's (``router/src/server.rs``), the
            # model's own too.
            return ["tgi"]
        bases = [model for model in self.models if model.parent is None] or list(self.models)
        names: dict[str, str] = {}
        for model in bases:
            names.setdefault(model.id if model.root is None else f"root {model.root}", model.id)
        return list(names.values())


class Fingerprint:
    """The facts told by a server's pages so far."""

    __slots__ = ("_answered", "_asked", "_info", "_models", "_over", "_owner", "_owns_itself", "_page", "_singly")

    def __init__(self) -> None:
        self._asked = 0
        self._answered: set[str] = set()
        self._models: tuple[ServedModel, ...] | None = None
        self._owner: str | None = None
        self._owns_itself = False
        self._page: str | None = None
        self._info: dict[str, Any] = {}
        self._over = False
        self._singly = ""

    def __repr__(self) -> str:
        return f"<Fingerprint after {self._asked} pages: {self.facts().server}>"

    @property
    def heard(self) -> bool:
        """Whether any page was answered: not by a 503 and its like."""
        return bool(self._answered)

    def next(self) -> WireRequest | None:
        """Return the next page to ask for, and count the page as asked; ``None``: none is left."""
        page = self._choose()
        if page is None:
            return None
        self._asked += 1
        self._page = page
        return WireRequest("GET", page, from_root=page != _MODELS)

    @property
    def open(self) -> bool:
        """Whether another page would be asked for."""
        return self._choose() is not None

    @property
    def names_models(self) -> bool:
        """Whether calls may use the models' names.

        A model that owns itself may be TGI's, which has another name: ``/info`` tells.
        """
        return bool(self.facts().base_models()) and not (self._owns_itself and self.open)

    def _choose(self) -> str | None:
        if self._over or self._asked >= _MOST_PAGES:
            return None
        if _MODELS not in self._answered:
            return _MODELS
        if self._info or (self._owner is None and self._singly):
            return None
        return next((page for page in _NEXT[self._owner] if page not in self._answered), None)

    def give_up(self) -> None:
        """Ask for nothing more."""
        self._over = True

    def take(self, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Take in the page asked for last; return whether it told anything, if only its absence."""
        page = self._page
        assert page is not None, "a page is asked for before it is taken in"
        if self._owner is None and headers.get("server", "").startswith("llama.cpp"):
            self._owner = "llamacpp"
        if headers.get("server", "").startswith("BaseHTTP/"):
            self._singly = _ON_PYTHONS_SERVER
        if status in _LATER:
            return False
        self._answered.add(page)
        if status in (401, 403):
            self._over = True
        if 200 <= status < 300:
            reply = _object(body)
            if page == _MODELS:
                self._on_models(reply)
            else:
                self._info = reply
        return True

    def _on_models(self, reply: dict[str, Any]) -> None:
        cards = reply.get("data")
        if not isinstance(cards, list):
            return
        cards = [card for card in cards[:_MOST_MODELS] if isinstance(card, dict) and _name(card.get("id"))]
        self._models = tuple(_served(card) for card in cards)
        owners = (_OWNERS.get(card["owned_by"]) for card in cards if isinstance(card.get("owned_by"), str))
        self._owner = self._owner or next(filter(None, owners), None)
        self._owns_itself = any(card.get("owned_by") == card["id"] for card in cards)
        if cards and all(map(_is_of_transformers, cards)):
            self._singly = "it is transformers serve"

    @property
    def _is_behind_v1(self) -> bool:
        """Whether the server's own routes seem out of reach, as its own pages are."""
        if self._owner not in _CALLED_BELOW_ROOT or self._info or self.open:
            return False
        return not self._answered.isdisjoint(_NEXT[self._owner])

    def facts(self) -> ServerFacts:
        """Return the facts that are known now."""
        info, models = self._info, self._models or ()
        signed = (name for name, fields in _SIGNS.items() if all(_count(info, field) for field in fields))
        owner = self._owner or next(signed, None)
        if owner is None or self._is_behind_v1:
            dialect, caps = (
                "openai" if self._models is not None else None,
                dict.fromkeys(Kind, 1) if self._singly else {},
            )
            return ServerFacts(dialect, models=models, caps=caps, singly=self._singly)
        told = {name: _count(info, field) for name, field in _TOLD.get(owner, {}).items()}
        if owner == "sglang" and info.get("allow_auto_truncate") is True:
            # The server cuts longer inputs: none is too long.
            models = tuple(replace(model, max_len=None) for model in models)
        if not models and (name := _name(info.get("served_model_name")) or _name(info.get("model_id"))):
            models = (ServedModel(name),)
        cap = told.get("cap")
        return ServerFacts(
            owner,
            _version(info.get("version", info.get("build_info"))),
            models,
            told.get("max_len"),
            {} if cap is None else dict.fromkeys(_CAPPED[owner], cap),
            _slots_of_ranks(info) or told.get("slots"),
            bounds_thinking=info.get("enable_strict_thinking") is True and bool(info.get("reasoning_parser")),
            thinks_in=_tag_in(info.get("chat_template")),
        )


def _tag_in(template: object) -> str:
    return next((tag for tag in TAGS if tag in template), "") if isinstance(template, str) else ""


def _is_of_transformers(card: dict[str, Any]) -> bool:
    organization, slash, _ = card["id"].partition("/")
    owners = (organization if slash else "", "local")
    return card.get("owned_by") in owners and card.get("status") in ({"value": "loaded"}, {"value": "unloaded"})


def _slots_of_ranks(info: dict[str, Any]) -> int:
    """Return what SGLang's data-parallel ranks run at once, together; 0: not told by each."""
    states = info.get("internal_states")
    ranks = [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    running = [_count(state, "effective_max_running_requests_per_dp") or 0 for state in ranks]
    return sum(running) if all(running) else 0


def _served(card: dict[str, Any]) -> ServedModel:
    length = _count(card, "max_model_len") or _count(card, "meta.n_ctx")
    return ServedModel(card["id"], length, _name(card.get("parent")), _name(card.get("root")))


def _object(body: bytes) -> dict[str, Any]:
    try:
        reply = from_json(body)
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME else None


def _count(page: object, place: str) -> int | None:
    """Return the number of a field, with dots between names, if it is one that can be believed."""
    value = page
    for name in place.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value if type(value) is int and 0 < value <= _LARGEST_NUMBER else None


def _version(value: object) -> str | None:
    # The version is shown and logged.
    return value if isinstance(value, str) and _VERSION.fullmatch(value) else None
