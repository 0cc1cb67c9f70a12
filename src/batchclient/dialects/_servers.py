"""The sorts of servers, one row each: its routes, the lists it takes, the fields it lacks.

vLLM (0.32); also the row of a server that is not known yet:
- A list may hold 1,024 prompts (``VLLM_MAX_COMPLETION_PROMPTS``).
- With ``--scheduling-policy priority`` lower priorities go first. Without the option, 0.32 was seen
  to accept and ignore priorities; its documentation says that a number other than 0 is refused.
- Lists of chats have had their own route since 0.19, without a cap: 1,025 conversations were seen
  to be answered. Embeddings, pairs and texts to classify come in lists of any length. ``/tokenize``
  takes one text at a time.
- A server has only the paths of its own model's kind; the others are not found.

SGLang (0.5.23, ``srt/entrypoints``; not yet seen running):
- Completions go to ``/generate`` (``_native``). Its ``/v1/completions`` gives no ids as vLLM does.
- Higher priorities go first (``--enable-priority-scheduling``).
- ``/v1/tokenize`` takes a ``prompt`` or a list of prompts.

TGI (3.3, ``router/src/server.rs``, ``router/src/lib.rs``; not yet seen running):
- A list may hold ``max_client_batch_size`` texts: 4, unless the server was started with more
  (``/info`` tells). Above the cap a 422 tells the number.
- TGI lacks token ids, ``n`` above 1, ``logprobs``, ``echo`` and ``suffix``, and ignores most of the
  fields silently. Calls with such a field are refused before they are sent: the answer would be
  another than asked for.
- ``top_p`` must be below 1; 1 means the same as none, and is left out. Without ``temperature`` TGI
  samples, as OpenAI's API does.
- Choices come in the order in which they finished. Events have ``finish_reason: ""`` until the
  last, which has the prompt's own usage, and ``eos_token`` or ``stop_sequence`` for OpenAI's
  ``stop``. The stop string stays in the text.
- The model is called ``tgi``. Any other name is taken for a LoRA adapter's.
- Above ``max_concurrent_requests`` prompts TGI answers 429; a failed generation is a 424.

llama.cpp (``tools/server/README.md``, ``server-context.cpp``; commit 0c1e570, seen running):
- Completions go to ``/completion`` (``_native``). Sequences without a slot wait.
- An unreadable body, or an input longer than the physical batch, is a 500, though the call is at
  fault. While the server starts, it answers 503 "Loading model".
- ``/tokenize`` takes a single ``content``; special tokens are added only with ``add_special``.
  ``/apply-template`` writes a conversation as a text.
- It tells the likeliest tokens, as many as are asked for, before sampling and grammar. A token that
  ends amid a letter, or belongs to a stop string, comes without any (seen).

TensorRT-LLM (``tensorrt_llm/serve/openai_server.py``, ``postprocess_handlers.py``):
- ``/v1/completions`` alone; every unknown field is refused. Lists of texts or ids have no cap.
- A stream ends with one usage event per prompt that does not name its prompt. The usages of a
  streamed list are therefore estimated (``_shares``).
- Every fault is a 400, the server's own as well. A message with an engine's words is taken for the
  server's fault.

TEI (1.9, ``router/src/http/server.rs``, ``core/src/infer.rs``; not yet seen running):
- A request may hold ``max_client_batch_size`` inputs: 32, unless the server was started with more
  (``/info`` tells). Above the cap a 422 tells the number.
- Each input takes one of ``max_concurrent_requests`` (512) permits at once. Where a permit is
  missing, the whole request is a 429.
- ``/rerank`` calls the documents ``texts``. ``/predict`` orders a text's classes by their scores. A
  classification here has the model's order, so ``/predict`` is not asked.
- By default longer inputs are cut silently (``auto_truncate``).

Any other server with OpenAI's API: a gateway, ``transformers serve``, a mock:
- No field of vLLM's is sent. A list's usage is a sum, and each call gets a share (``_shares``).
- Lists are tried, and given up where the server refuses them or leaves prompts unanswered
  (``transformers serve`` 5.23: "prompt must be a string."). So are streams.
- Chats go one by one: OpenAI's API has no list of conversations. ``/rerank`` is not OpenAI's
  either, but many gateways have it.
- ``transformers serve`` (seen running) ends a stream without ``[DONE]``, leaves the stop string in
  the text, and ignores ``n``. A reply with too few choices is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._bodies import Bodies, refuse
from batchclient.dialects._fields import canonical
from batchclient.dialects._items import NestedTokensDecoder, ObjectTokensDecoder, TokensDecoder
from batchclient.dialects._labels import as_choice, as_grammar, as_regex, as_tgi
from batchclient.dialects._native import LLAMACPP, SGLANG
from batchclient.dialects._readers import StopReader
from batchclient.dialects._routes import CLASSES, VECTORS, Generation, Inputs, Pairs, Ranks, Route
from batchclient.dialects._thinking import (
    LLAMACPP_BUDGETS,
    SGLANG_BUDGETS,
    TRTLLM_BUDGETS,
    VLLM_BUDGETS,
    Budget,
)
from batchclient.errors import BadRequest, ServerFault

__all__ = ["SERVERS", "Server"]


@dataclass(frozen=True, kw_only=True)
class Server:
    """A sort of server.

    Args:
        name: of the dialect.
        routes: by kind of call.
        caps: the most prompts a request takes; a kind that is missing has no known cap.
        lacks: fields of vLLM's that the server refuses or ignores.
        length_reach: how many length buckets a list may span; ``None``: any (continuous batching).
        continues_chats: whether the server has ``continue_final_message``.
        takes_guided: whether it heeds a form by vLLM's older names, or by the later one. Others are
            not asked: most ignore the field, and the answer would be of any form.
        labels: the form of an answer that is one of some labels, in the server's words; ``None``:
            it has none.
        tells_labels: whether it tells how likely chosen tokens are, and echoes prompts with that,
            or how likely all tokens are.
        judge: corrects the meaning of a refusal, by the server's words and the model's name.
        budgets: by kind of call, how it bounds a model's thinking (``_thinking``); a kind that is
            missing has no bound there.
    """

    name: str
    routes: Mapping[Kind, Route]
    caps: Mapping[Kind, int] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    length_reach: int | None = None
    continues_chats: bool = False
    takes_guided: bool = False
    labels: Callable[[Sequence[str], Kind], dict[str, Any]] | None = None
    tells_labels: bool = False
    judge: Callable[[Failure, str, str], Failure] | None = None
    budgets: Mapping[Kind, Budget] = field(default_factory=dict)


VLLM_ONLY = frozenset(
    {"stream_interval", "continuous_usage_stats", "return_token_ids", "priority", "repetition_detection"}
)
"""Fields added by batchclient and unknown to OpenAI's API."""
_CHATS = Generation(path="/chat/completions", field=b"messages")
_TEXTS = Inputs("/tokenize", TokensDecoder, b"prompt", chat_field=b"messages")
_RANKS = {Kind.SCORE: Ranks(), Kind.RERANK: Ranks()}


# TGI -----------------------------------------------------------------------------------------------------------------


def _tgi_body(fields: dict[str, Any]) -> bytes | Failure:
    """Return the fields as TGI takes them, or a refusal."""
    refused = {
        "tells no logprobs of completions": "logprobs" in fields,
        "takes no suffix": "suffix" in fields,
        "does not echo prompts": fields.get("echo"),
        "tells no token ids": fields.get("return_token_ids"),
        "makes one choice per prompt, and n is more": fields.get("n", 1) != 1,
        "makes one choice per prompt, and best_of is more": fields.get("best_of", 1) != 1,
    }
    for what, is_asked in refused.items():
        if is_asked:
            return refuse("tgi", what)
    top_p = fields.get("top_p")
    return canonical({name: value for name, value in fields.items() if not (name == "top_p" and top_p == 1)})


class _TgiReader(StopReader):
    """Reads a reply: reasons to finish in OpenAI's words, and texts without their stop string."""

    reasons: Mapping[str, str] = {"eos_token": "stop", "stop_sequence": "stop"}

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.counts_each = batch.streamed

    def reply(self, reply: Any) -> Any:
        """Read a plain reply, which has one usage for all prompts."""
        self.counts_each = False
        return super().reply(reply)


def _judge_tgi(failure: Failure, words: str, model: str) -> Failure:
    if "adapter" in words.lower() and model != "tgi":
        hint = "; a tgi server calls its own model 'tgi', and takes every other name for a LoRA adapter's"
        return replace(failure, message=failure.message + hint)
    return failure


# llama.cpp and TensorRT-LLM ------------------------------------------------------------------------------------------

_CALLS_FAULT = re.compile(r"too large to process|parse_error|parse error|type_error|json\.exception", re.IGNORECASE)
"""Words in llama.cpp's 500 about a call that would fail again in the same way."""
_ENGINE = re.compile(r"executor|cuda|out of memory|internal error|nccl|\bMPI\b|engine", re.IGNORECASE)


def _judge_llamacpp(failure: Failure, words: str, _: str) -> Failure:
    is_fault = failure.status == 500 and failure.kind is FailureKind.MAYBE_PROCESSED
    if is_fault and _CALLS_FAULT.search(words):
        return replace(failure, kind=FailureKind.BAD_CALL, error=BadRequest)
    return failure


def _judge_trtllm(failure: Failure, words: str, _: str) -> Failure:
    if failure.kind is FailureKind.BAD_CALL and failure.status == 400 and _ENGINE.search(words):
        # If the call is at fault after all, the second attempt shows it.
        return replace(failure, kind=FailureKind.MAYBE_PROCESSED, error=ServerFault, once=True)
    return failure


# The table -----------------------------------------------------------------------------------------------------------

_OPENAI = Server(
    name="openai",
    routes={
        Kind.COMPLETION: Generation(path="/completions", field=b"prompt", reader=StopReader),
        Kind.CHAT: _CHATS,
        Kind.EMBEDDING: VECTORS,
        **_RANKS,
    },
    caps={Kind.CHAT: 1},
    lacks=VLLM_ONLY,
)
SERVERS = {
    server.name: server
    for server in (
        Server(
            name="vllm",
            routes={
                Kind.COMPLETION: Generation(path="/completions", field=b"prompt", priority_sign=-1),
                Kind.CHAT: replace(_CHATS, list_path="/chat/completions/batch", priority_sign=-1),
                Kind.EMBEDDING: VECTORS,
                Kind.SCORE: Pairs(),
                Kind.RERANK: Pairs(),
                Kind.CLASSIFICATION: CLASSES,
                Kind.TOKENS: _TEXTS,
            },
            caps={Kind.COMPLETION: 1024, Kind.TOKENS: 1},
            continues_chats=True,
            takes_guided=True,
            budgets=VLLM_BUDGETS,
            labels=as_choice,
            tells_labels=True,
        ),
        Server(
            name="sglang",
            routes={
                Kind.COMPLETION: SGLANG,
                Kind.CHAT: replace(_CHATS, priority_sign=1),
                Kind.EMBEDDING: VECTORS,
                **_RANKS,
                Kind.TOKENS: Inputs("/v1/tokenize", TokensDecoder, b"prompt"),
            },
            caps={Kind.CHAT: 1},
            # A budget for thinking is heeded with two options, and else dropped.
            lacks=frozenset({"return_token_ids", "repetition_detection", "thinking_budget"}),
            continues_chats=True,
            budgets=SGLANG_BUDGETS,
            labels=as_regex,
        ),
        Server(
            name="tgi",
            routes={
                Kind.COMPLETION: Generation(
                    path="/completions", field=b"prompt", reader=_TgiReader, bodies=Bodies(_tgi_body), takes_ids=False
                ),
                Kind.CHAT: _CHATS,
                Kind.TOKENS: Inputs("/tokenize", ObjectTokensDecoder, b"inputs"),
            },
            caps={Kind.COMPLETION: 4, Kind.CHAT: 1, Kind.TOKENS: 1},
            lacks=VLLM_ONLY,
            labels=as_tgi,
            judge=_judge_tgi,
        ),
        Server(
            name="llamacpp",
            routes={
                Kind.COMPLETION: LLAMACPP,
                Kind.CHAT: _CHATS,
                Kind.EMBEDDING: VECTORS,
                **_RANKS,
                Kind.TOKENS: replace(_TEXTS, field=b"content", chat_path="/apply-template"),
            },
            caps={Kind.CHAT: 1, Kind.TOKENS: 1},
            lacks=VLLM_ONLY,
            labels=as_grammar,
            tells_labels=True,
            judge=_judge_llamacpp,
            budgets=LLAMACPP_BUDGETS,
        ),
        replace(
            _OPENAI,
            name="trtllm",
            routes={kind: _OPENAI.routes[kind] for kind in (Kind.COMPLETION, Kind.CHAT)},
            judge=_judge_trtllm,
            budgets=TRTLLM_BUDGETS,
        ),
        Server(
            name="tei",
            routes={
                Kind.EMBEDDING: VECTORS,
                Kind.SCORE: Ranks(b"texts", from_root=True),
                Kind.RERANK: Ranks(b"texts", from_root=True),
                Kind.TOKENS: Inputs("/tokenize", NestedTokensDecoder, b"inputs"),
            },
            caps=dict.fromkeys((Kind.EMBEDDING, Kind.SCORE, Kind.RERANK, Kind.CLASSIFICATION, Kind.TOKENS), 32),
            length_reach=0,
            lacks=VLLM_ONLY,
        ),
        _OPENAI,
    )
}  # fmt: skip
"""By the dialect's name."""
