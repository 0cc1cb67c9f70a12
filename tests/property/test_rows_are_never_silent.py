"""Rows of every form with parameters of vLLM's own: each is on the wire as it is written, or refused by its name."""

import asyncio
import json
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient import ConfigError
from batchclient.retry import Backoff
from tests.shell.scripted import ScriptedTransport, error, make_client
from tests.shell.test_sync import make_sync

FIELDS = json.loads((Path(__file__).parent / "vllm_0_32_fields.json").read_text())
"""The fields of vLLM 0.32's request models by route, without the inputs, each with its type or a value."""
VALUES = {
    "bool": st.just(True),
    "int": st.integers(1, 90),
    "float": st.sampled_from([0.5, 1.25]),
    "str": st.sampled_from(["a text", "é"]),
    "list": st.just([1, 2]),
    "dict": st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)),
}
OTHER = {"body": {"top_k": 3, "new": {"c": 1}}, "params": {"seed": 4, "logit_bias": {"c": 1}}, "tools": [{"d": 1}]}
"""Another row of the same table."""


def value_of(kind):
    return VALUES[kind] if kind in VALUES else st.just(kind.removeprefix("="))


@st.composite
def rows(draw, number):
    """A row, the fields that it says, and the arguments of a map whose rows are such."""
    text = f"input {number} of the rows"
    route = draw(st.sampled_from(list(FIELDS)))
    names = draw(st.lists(st.sampled_from(list(FIELDS[route])), min_size=1, max_size=4, unique=True))
    said = {name: draw(value_of(FIELDS[route][name])) for name in names}
    chat = [{"role": "user", "content": text}]
    how = draw(st.sampled_from(["batch", "params", "take", None, "ignored"]))
    inputs = {
        "chat": {"messages": chat},
        "completions": {"prompt": text},
        "score": {"text_1": text, "text_2": "d"},
        "rerank": {"query": text, "documents": ["d"]},
    }
    if how == "batch" or route not in ("chat", "completions"):
        path = f"/v1/{'chat/completions' if route == 'chat' else route}"
        return {"url": path, "body": inputs.get(route, {"input": text}) | said}, said, {}
    if route == "chat" and draw(st.booleans()):
        inputs["chat"] = {"conversations": [{"from": "human", "value": text}]}
    row = {"text": text} if draw(st.booleans()) else inputs[route]
    arguments = {"call": {"chat": "chat", "completions": "complete"}[route]}
    if "text" in row:
        arguments["prompt"] = "{text}"
    if draw(st.booleans()):
        # Of the job, for all its rows: a row's own stand before them.
        arguments |= {"max_tokens": 77, "user": "the job"}
    if how == "params":
        return row | {"params": said}, said, arguments | draw(st.sampled_from([{}, {"row_params": "take"}]))
    if draw(st.booleans()) and "text" in row:
        arguments["rows"] = "template"
    given = {"take": {"row_params": "take"}, None: {}, "ignored": {"row_params": "ignore"}}[how]
    return row | said, said, arguments | given


async def sent_of(documents, arguments, *, blocking):
    """The error of a row, and the bodies that were sent for it."""
    server = ScriptedTransport(*[lambda sent: error(400, "no")] * 50)
    given = {"dialect": "vllm", "retry": Backoff(max_attempts=1)}
    if blocking:
        with make_sync(server, **given) as client:
            (outcome,) = client.stream_map(documents, **arguments)
    else:
        async with make_client(server, **given) as client:
            (outcome,) = [each async for each in client.stream_map(documents, **arguments)]
    return outcome.error, [sent.body for sent in server.sent]


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_a_parameter_is_on_the_wire_or_refused_by_name(data):
    async def main():
        for number in range(6):
            row, said, arguments = data.draw(rows(number))
            # A table's row has the nulls of another one.
            is_table = data.draw(st.booleans())
            documents = pa.Table.from_pylist([row, OTHER]).slice(0, 1) if is_table else [row]
            fault, bodies = await sent_of(documents, arguments, blocking=data.draw(st.booleans()))
            if isinstance(fault, ConfigError):
                assert fault.field in said, (row, fault)
                continue
            assert bodies, (row, fault)
            for name, value in said.items():
                on_wire = bodies[0].get(name)
                is_data = is_table and "prompt" in arguments and "row_params" not in arguments
                if arguments.get("row_params") == "ignore" or is_data:
                    assert name not in bodies[0] or name in (
                        "model",
                        "max_tokens",
                        "user",
                        "stream",
                        "stream_options",
                        "stream_interval",
                    )
                elif name == "priority" and "params" not in row and "url" not in row:
                    assert on_wire == -value  # the client's highest goes first, and vLLM's lowest
                else:
                    expected = -value if name == "priority" and "url" not in row else value
                    assert (on_wire, type(on_wire)) == (expected, type(expected)), (row, bodies[0])

    asyncio.run(main())
