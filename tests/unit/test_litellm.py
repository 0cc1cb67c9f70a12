"""What LiteLLM's real proxy answered (``tests/wire/litellm``), read as any server's that nobody knows by name."""

import json
from pathlib import Path


from tests.core import FailureKind, Kind
from batchclient.dialects._shapes import Shapes
from batchclient.dialects.vllm import VllmDialect
from batchclient.types import Usage
from tests.unit.golden import make_batch, make_request

FOLDER = Path(__file__).parent.parent / "wire" / "litellm"
DEF, IMPORT, CLASS = (
    "268194c9 sky ray pin may cow",
    "de2abade dog lap orb dew oak",
    "69ef3db3 orb dew oak elm car",
)


def decode(name, **fields):
    """Return the decoder after its last byte, and what came of it."""
    record = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    sent = record["request"]["json"]
    kind = Kind.CHAT if "messages" in sent else Kind.COMPLETION
    params = {k: v for k, v in sent.items() if k not in ("model", "prompt", "messages") and "stream" not in k}
    shape, _ = Shapes().shape(params, "m", kind=kind, token_ids=False, **fields)
    prompts = [sent["messages"]] if kind is Kind.CHAT else sent["prompt"]
    prompts = [prompts] if isinstance(prompts, str) else prompts
    batch = make_batch(shape, [make_request(shape, each) for each in prompts], streamed="stream" in sent)
    decoder = VllmDialect().decoder(batch, record["headers"]["content-type"])
    pairs = decoder.feed(record["body_text"].encode(), 12.0)
    last, failure = decoder.end(12.0)
    return decoder, [*pairs, *last], failure


def read(name):
    """Return each prompt's texts, and the failure's kind."""
    _, answers, failure = decode(name)
    return {p: [one.text for one in each.choices] for p, each in answers}, failure and failure.kind


def test_each_prompt_has_its_own_answer():
    for names, expected in [
        ("plain_single plain_list_of_one stream_single stream_single_no_usage stream_single_two_events", [DEF]),
        ("stream_single_through_openai stream_single_through_text", [DEF]),
        ("stream_single_max_tokens_1", [DEF[:8]]),
        ("plain_list plain_list_token_ids plain_list_through_openai plain_list_through_text", [DEF, IMPORT, CLASS]),
        ("chat_plain chat_stream chat_stream_no_usage chat_through_openai chat_stream_through_openai", None),
    ]:
        expected = expected or ["2f371a4d log her van car car"]
        for name in names.split():
            assert read(name) == ({i: [text] for i, text in enumerate(expected)}, None), name


def test_a_stream_of_several_is_asked_for_plain():
    for name in ["stream_list", "stream_list_no_usage", "stream_list_two_events", "stream_single_n2"]:
        assert read(name) == ({}, FailureKind.STREAM_REFUSED)


def test_so_is_a_chat_of_several_whose_one_alone_ends():
    assert read("chat_stream_n2") == ({}, FailureKind.STREAM_REFUSED)


def test_no_piece_is_handed_out_before_two_choices_are_told_apart():
    decoder, _, failure = decode("stream_single_n2", to_caller=True)
    assert (decoder.deltas, failure.kind) == ([], FailureKind.STREAM_REFUSED)
    decoder, _, _ = decode("chat_stream_n2", to_caller=True)
    # The role, then each choice's first token, in the order in which they came.
    assert [(delta.index, delta.text) for delta in decoder.deltas[:3]] == [
        (0, ""),
        (0, "2f371a4d-ed8b"),
        (1, "2f371a4d-37d7"),
    ]


def test_zeros_where_no_usage_was_asked_for_are_no_usage():
    _, ((_, answer),), failure = decode("stream_single_no_usage")
    assert (answer.usage, failure) == (None, None)
    _, ((_, answer),), _ = decode("stream_single")
    assert answer.usage == Usage(2, 6)
