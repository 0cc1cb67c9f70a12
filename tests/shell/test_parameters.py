"""Parameters of calls: names that no call has are refused with the nearest one; ``extra_body`` carries any field."""

import json
import re

import pytest

from batchclient import BatchClient, ConfigError, SyncBatchClient, params
from tests.core import Kind
from batchclient._old_names import OLD
from batchclient.client import BATCH_CLIENT_ARGUMENTS
from batchclient.dialects._kinds import KINDS, known_fields
from batchclient.dialects._fields import FIELDS, FIELDS_OF_KIND, Role
from batchclient.simulator import SimulatedServer, SimulatorTransport

MESSAGES = [{"role": "user", "content": "hi"}]


class Recorder(SimulatorTransport):
    """The embedded server; remembers the bodies sent to it."""

    def __init__(self):
        super().__init__(SimulatedServer("instant", model="m"))
        self.bodies = []

    async def send(self, request, timeouts):
        self.bodies.append(json.loads(request.body))
        return await super().send(request, timeouts)


def make_client(server, **settings):
    return BatchClient("http://s/v1", model="m", http=lambda url, headers: server, probe=False, **settings)


async def ask_stream(client, **fields):
    return [delta async for delta in client.stream("a", **fields)]


async def ask_stream_chat(client, **fields):
    return [delta async for delta in client.stream_chat(MESSAGES, **fields)]


CALLS = {
    "complete()": lambda client, **fields: client.complete("a", **fields),
    "chat()": lambda client, **fields: client.chat(MESSAGES, **fields),
    "stream()": ask_stream,
    "stream_chat()": ask_stream_chat,
}
MAPS = {
    "batch_map()": lambda client, **fields: client.batch_map(["a"], "{}", **fields),
    'batch_map(call="chat")': lambda client, **fields: client.batch_map(["a"], "{}", call="chat", **fields),
    'batch_map(call="embed")': lambda client, **fields: client.batch_map(["a"], "{}", call="embed", **fields),
}
OF_OTHER_KINDS = {
    "embed()": lambda client, **fields: client.embed("a", **fields),
    "classify()": lambda client, **fields: client.classify("a", **fields),
    "score()": lambda client, **fields: client.score("a", "b", **fields),
    "rerank()": lambda client, **fields: client.rerank("a", [], **fields),
    "tokenize()": lambda client, **fields: client.tokenize("a", **fields),
    "log_likelihood()": lambda client, **fields: client.log_likelihood("b", **fields),
}
ASKS = {
    **CALLS,
    **MAPS,
    "stream_map()": lambda client, **fields: client.stream_map(["a"], "{}", **fields),
    **OF_OTHER_KINDS,
}

NEAREST = {
    "max_token": "max_tokens", "temprature": "temperature", "topk": "top_k", "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens", "stop_sequences": "stop", "random_seed": "seed", "timeouts": "timeout_s",
    "response_modell": "response_model", "structured_output": "structured_outputs", "n_predict": "max_tokens",
    "tennant": "tenant", "extra_boddy": "extra_body",
}  # fmt: skip
TOLD = {
    **{name: f"{name} is an argument of BatchClient, not of CALL: BatchClient(…, {name}=…)"
       for name in sorted(BATCH_CLIENT_ARGUMENTS - {"model", "timeout_s", *FIELDS})},
    **{name: f"{name} is not a parameter of CALL: " for name in ("api_key", "headers", "stream_options")},
    "user_name": "user_name is no argument of CALL", "температура": "", "x" * 10_000: "",
}  # fmt: skip
"""How each call's refusal of a name begins."""
TOLD_BY = {
    **dict.fromkeys(CALLS, {
        name: f"{name} is no argument of CALL…Did you mean {nearest}? If yours does, give extra_body={{'{name}': …}}"
        for name, nearest in NEAREST.items()
    }),
    "batch_map()": {
        "system": "system is no argument of batch_map()… {'role': 'system', ", "return_exception": "…Did you mean return_exceptions?",
        "timeout": "timeout is not a parameter of batch_map(): …timeout_s",
        "tools": '…It is a field of chats: chat(), or call="chat" of a map, takes it',
    },
    'batch_map(call="embed")': {"dimension": "…Did you mean dimensions"},
    "stream_map()": {"order_ed": "…Did you mean ordered?"},
    "embed()": {"dimension": "…Did you mean dimensions?", "timeouts": "…Did you mean timeout_s?"},
    "classify()": {"use_activations": "…Did you mean use_activation?"},
    "score()": {
        "instructions": "…Did you mean instruction?", "truncate_prompt_token": "…Did you mean truncate_prompt_tokens?",
        "zzz": "…such a field. If yours does, give extra_body={'zzz': …}",
    },
    "rerank()": {name: "…Did you mean top_n?" for name in ("top_k", "topn")},
    "tokenize()": {"add_special_token": "…Did you mean add_special_tokens?"},
    "log_likelihood()": {
        **{name: "…Did you mean given?" for name in ("context", "prefix", "prompt", "givn")},
        "add_special_token": "…Did you mean add_special_tokens?",
    },
}  # fmt: skip
TOLD_BY["chat()"] = TOLD_BY["chat()"] | {"prompt": "…messages"}
TOLD_BY["complete()"] = TOLD_BY["complete()"] | {
    "top_logprobs": "…It is a field of chats", "timeout": "…timeout_s", "extra_headers": "…headers",
    "stream_interval": "…streamed inside",
}  # fmt: skip


@pytest.mark.parametrize("call", ASKS)
async def test_a_name_that_no_call_has_is_refused_at_once_with_the_right_words(call):
    server = Recorder()
    async with make_client(server) as client:
        for name, words in {**TOLD, **TOLD_BY.get(call, {})}.items():
            with pytest.raises(ConfigError) as caught:
                await ASKS[call](client, **{name: None})
            told = caught.value.message
            assert caught.value.field == name
            assert len(told) < 300
            pattern = ".*".join(re.escape(part) for part in words.replace("CALL", call).split("…"))
            assert re.match(pattern, told), (words, told)
        assert client.statistics().submitted == 0
    assert server.bodies == []


def test_no_field_of_a_call_is_taken_for_the_clients():
    for call in KINDS:
        assert not known_fields(call) & (OLD.keys() | BATCH_CLIENT_ARGUMENTS)


@pytest.mark.parametrize("call", CALLS)
async def test_extra_body_goes_to_the_server_as_it_is(call):
    field = {"deep": [{"b": 1, "a": None}], "text": "ü"}
    server = Recorder()
    async with make_client(server) as client:
        await CALLS[call](client, max_tokens=2, extra_body={"max_token": field, "temperature": 0.0})
    (body,) = server.bodies
    assert body["max_token"] == field
    assert body["temperature"] == 0.0
    assert "extra_body" not in body


async def test_the_fields_of_an_extra_body_are_part_of_the_coalescing_key():
    server = Recorder()
    async with make_client(server) as client:
        import anyio

        async with anyio.create_task_group() as group:
            for number in range(8):
                fields = {"max_tokens": 2, "extra_body": {"unknown": number % 2}}
                group.start_soon(lambda fields=fields: client.complete("a", **fields))
    assert sorted(body["unknown"] for body in server.bodies) == [0, 1]
    assert {len(body["prompt"]) for body in server.bodies} == {4}


def test_threads_are_told_the_same():
    with SyncBatchClient("http://s/v1", model="m", http=lambda url, headers: Recorder()) as client:
        with pytest.raises(ConfigError, match="Did you mean max_tokens"):
            client.complete("a", max_token=5)
        with pytest.raises(ConfigError, match="Did you mean dimensions"):
            client.batch_map(["a"], "{}", call="embed", dimension=5)
        assert client.complete("a", max_tokens=2, extra_body={"max_token": 5}).text


# The tables ----------------------------------------------------------------------------------------------------------


def keys_of(name):
    return set(getattr(params, name).__annotations__)


def test_every_field_that_has_a_role_of_its_own_has_a_name():
    """A field that the batching treats otherwise than the rest is a field that a call takes."""
    for kind in Kind:
        of_kind = FIELDS | FIELDS_OF_KIND.get(kind, {})
        fields = {name for name, (role, _) in of_kind.items() if role is not Role.OURS}
        of_one_kind = {"kv_transfer_params", "ec_transfer_params", "prompt_embeds"}
        assert fields - of_one_kind <= known_fields(kind), kind
    ours = {name for name, (role, _) in FIELDS.items() if role is Role.OURS}
    for kind in Kind:
        assert not ours & known_fields(kind), kind


MAP_ARGUMENTS = {
    "model", "timeout_s", "priority", "tenant", "session", "look_ahead", "max_cost",
    "journal", "progress", "rows", "row_params", "fail_if", "finish_by_s",
}  # fmt: skip
OF_TEXTS = {"response_model", "repair", "order"}


def test_the_classes_build_on_one_another():
    assert keys_of("LikelihoodParams") < keys_of("CompletionParams")
    assert keys_of("CompletionStreamParams") == keys_of("CompletionParams") | {"stream_interval"}
    assert keys_of("ChatStreamParams") == keys_of("ChatParams") | {"stream_interval"}
    arguments = MAP_ARGUMENTS
    assert keys_of("CompletionMapParams") == keys_of("CompletionParams") | arguments | OF_TEXTS
    assert keys_of("ChatMapParams") == keys_of("ChatParams") | arguments | OF_TEXTS
    assert keys_of("EmbeddingMapParams") == keys_of("EmbeddingParams") | arguments
    assert keys_of("ClassificationMapParams") == keys_of("ClassificationParams") | arguments


@pytest.mark.parametrize("name", [name for name in params.__all__ if name != "StructuredOutputs"])
def test_a_class_names_each_of_its_own_fields_in_its_docstring(name):
    """The docstrings say which server has a field."""
    described = " ".join(base.__doc__ or "" for base in vars(params).values() if isinstance(base, type))
    assert not {field for field in keys_of(name) if f"``{field}``" not in described} - MAP_ARGUMENTS - OF_TEXTS


def test_no_class_has_an_argument_of_the_methods():
    for name in (
        "CompletionParams",
        "ChatParams",
        "EmbeddingParams",
        "ScoreParams",
        "TokenizeParams",
        "LikelihoodParams",
    ):
        assert not keys_of(name) & {"model", "timeout_s", "priority", "tenant", "response_model", "prompt", "messages"}
