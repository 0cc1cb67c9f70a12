"""Guises of the embedded server: vLLM as older ones were."""

from dataclasses import replace

from batchclient.simulator.guise import Route
from batchclient.simulator.vllm import CHAT, VLLM
from batchclient.simulator.validation import parse_completion
from batchclient.simulator.wire import ReplyWriter

COMPLETIONS = "/v1/completions"


def _one_event_a_token(body, limits):
    call = parse_completion(body, limits)
    call.stream_interval = 1
    return call


COMPLETIONS_ALONE = replace(VLLM, routes={COMPLETIONS: VLLM.routes[COMPLETIONS]})
WITHOUT_LISTS_OF_CHATS = replace(COMPLETIONS_ALONE, routes=COMPLETIONS_ALONE.routes | {"/v1/chat/completions": CHAT})
EVENT_PER_TOKEN = replace(
    VLLM, routes=VLLM.routes | {COMPLETIONS: Route(_one_event_a_token, ReplyWriter)}, version="0.26.0"
)
