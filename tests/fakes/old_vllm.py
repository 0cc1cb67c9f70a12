"""Guises of the embedded server: vLLM as older ones were."""

from dataclasses import replace

from batchclient.simulator.guise import Route, json_reply
from batchclient.simulator.replies import CompletionWriter
from batchclient.simulator.requests import CompletionRequest
from batchclient.simulator.vllm import VLLM

COMPLETIONS = "/v1/completions"


class _OneEventAToken(CompletionRequest):
    def call(self, limits):
        call = super().call(limits)
        call.stream_interval = 1
        return call


COMPLETIONS_ALONE = replace(VLLM, routes={COMPLETIONS: VLLM.routes[COMPLETIONS]})
WITHOUT_LISTS_OF_CHATS = replace(
    COMPLETIONS_ALONE, routes={path: VLLM.routes[path] for path in (COMPLETIONS, "/v1/chat/completions")}
)
EVENT_PER_TOKEN = replace(
    VLLM,
    routes={**VLLM.routes, COMPLETIONS: Route(_OneEventAToken, CompletionWriter)},
    handlers={**VLLM.handlers, ("GET", "/version"): lambda _server, _body: json_reply({"version": "0.26.0"})},
)
