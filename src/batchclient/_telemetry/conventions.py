"""The names of spans, events and attributes: one table, and the only place where names stand.

The names of ``gen_ai.*``, ``server.*`` and ``error.*`` are those of OpenTelemetry's conventions for
generative AI, read on 2026-11-26 at the commit ``READ_AT``, in ``docs/gen-ai/client-inference.md``.
The conventions have the status *Development*: names may change there. OpenTelemetry's Python
package marks its own constants of these names as deprecated, so none is imported. All names here
but ``gen_ai.response.time_to_first_chunk`` and ``gen_ai.request.stream`` are in version 1.37 of the
conventions, too.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ATTRIBUTES", "OPERATIONS", "PROVIDERS", "READ_AT", "Attribute"]

READ_AT = "open-telemetry/semantic-conventions-genai@024a4f944a1291fcb627c9c47da69e79868dd15e"

REQUEST_SPAN = "batchclient.request"
RETRY, SPLIT, FAILOVER = "batchclient.retry", "batchclient.split", "batchclient.failover"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
SEED = "gen_ai.request.seed"
STREAM = "gen_ai.request.stream"
CHOICES = "gen_ai.request.choice.count"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
ADDRESS = "server.address"
PORT = "server.port"
ERROR = "error.type"
SIZE = "batchclient.request.size"
STREAMED = "batchclient.request.streamed"
SPAN_ID = "batchclient.request.span_id"
TRACE_ID = "batchclient.request.trace_id"
ATTEMPTS = "batchclient.attempts"
QUEUE_S = "batchclient.queue_s"
PRIORITY = "batchclient.priority"
ALONE = "batchclient.alone_reason"
ROW_ID = "batchclient.row.id"
CLIENT = "batchclient.client"

OPERATIONS = {"completion": "text_completion", "chat": "chat", "embedding": "embeddings"}
"""By kind of call. Of other kinds the conventions know nothing: their operation is the kind."""

PROVIDERS = {
    "vllm": "vllm", "sglang": "sglang", "tgi": "tgi", "llamacpp": "llama.cpp", "trtllm": "tensorrt-llm", "tei": "tei",
}  # fmt: skip
"""By dialect of a known server. Of other servers the provider is ``OPENAI``."""
OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute.

    Args:
        of: whose attribute: ``"call"``, ``"request"`` or ``"event"``, or several of them.
        meaning: one sentence or phrase, for the docs.
    """

    name: str
    of: tuple[str, ...]
    meaning: str


_CALL, _REQUEST, _EVENT = "call", "request", "event"

ATTRIBUTES = (
    Attribute(OPERATION, (_CALL,), "`chat`, `text_completion`, `embeddings`; else the kind of call, such as `score`"),
    Attribute(PROVIDER, (_CALL,), "the known server: `vllm`, `sglang`, `tgi`, `llama.cpp`, `tensorrt-llm`, `tei`; else, and until it is known, `openai`"),  # noqa: E501
    Attribute(MODEL, (_CALL,), "what is asked for, where given"),
    Attribute(MAX_TOKENS, (_CALL,), "what is asked for, where given"),
    Attribute(TEMPERATURE, (_CALL,), "what is asked for, where given"),
    Attribute(TOP_P, (_CALL,), "what is asked for, where given"),
    Attribute(SEED, (_CALL,), "what is asked for, where given"),
    Attribute(STREAM, (_CALL,), "`true` where the answer goes to its caller piece by piece"),
    Attribute(CHOICES, (_CALL,), "`n`, or the beam width, where it is not 1"),
    Attribute(RESPONSE_MODEL, (_CALL,), "the model that the server names"),
    Attribute(RESPONSE_ID, (_CALL,), "the reply's id; the calls of a list share one"),
    Attribute(FINISH_REASONS, (_CALL,), "why each choice ended"),
    Attribute(FIRST_CHUNK_S, (_CALL,), "seconds from sending to the first token, of streamed requests"),
    Attribute(INPUT_TOKENS, (_CALL,), "tokens of the prompt, and of all choices"),
    Attribute(OUTPUT_TOKENS, (_CALL,), "tokens of the prompt, and of all choices"),
    Attribute(ADDRESS, (_CALL, _REQUEST, _EVENT), "the server's host and port; of a call, of its last request"),
    Attribute(PORT, (_CALL, _REQUEST, _EVENT), "the server's host and port; of a call, of its last request"),
    Attribute(ERROR, (_CALL, _REQUEST, _EVENT), "the class of the error; `cancelled` where the caller left"),
    Attribute(SIZE, (_CALL, _REQUEST, _EVENT), "calls in the request"),
    Attribute(STREAMED, (_CALL, _REQUEST), "`true` where the reply was asked for as a stream"),
    Attribute(SPAN_ID, (_CALL,), "the call's last request, and its trace where it is another than the call's"),
    Attribute(TRACE_ID, (_CALL,), "the call's last request, and its trace where it is another than the call's"),
    Attribute(ATTEMPTS, (_CALL,), "requests sent that contained the call, where more than 1"),
    Attribute(QUEUE_S, (_CALL,), "seconds from the call's making to its first request"),
    Attribute(PRIORITY, (_CALL,), "the priority, where it is not 0"),
    Attribute(ALONE, (_CALL, _REQUEST), "why the request held one call"),
    Attribute(ROW_ID, (_CALL,), "the id of a map's row, or of a message"),
    Attribute(CLIENT, (_CALL, _REQUEST), "`client_name`, where given"),
)  # fmt: skip
