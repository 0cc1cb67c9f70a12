"""Numbers and names that no exporter takes, or that are perhaps a text, are in no span."""

import json

import pytest

from tests.core import (
    Kind,
    Shape,
)
from batchclient._telemetry import conventions as name
from batchclient._telemetry.attributes import of_answer, of_row, of_shape
from batchclient.types import Choice, Completion, Usage

LONG = "x" * 257


def shape(**fields):
    own = {each: fields.pop(each) for each in ("model", "max_output_tokens") if each in fields}
    return Shape(b"k", json.dumps(fields).encode(), **{"model": "m", "kind": Kind.COMPLETION, **own})


@pytest.mark.parametrize(
    "fields", [{"temperature": 10**400}, {"top_p": -(10**400)}, {"seed": 2**80}, {"temperature": "hot"}]
)
def test_a_parameter_that_is_no_number_of_64_bits_is_left_out(fields):
    _, attributes = of_shape(shape(**fields))
    assert attributes == {name.OPERATION: "text_completion", name.MODEL: "m"}


def test_a_long_model_is_in_no_name_and_a_great_bound_in_no_attribute():
    title, attributes = of_shape(shape(model=LONG, max_output_tokens=10**30))
    assert title == "text_completion"
    assert attributes == {name.OPERATION: "text_completion"}


def test_usage_that_no_server_can_mean_is_left_out():
    attributes = {}
    of_answer(Completion((Choice(0, "t", "stop"),), Usage(10**30, 5), extra={"model": LONG, "id": LONG}), attributes)
    assert attributes == {name.FINISH_REASONS: ["stop"], name.OUTPUT_TOKENS: 5}


def test_a_row_id_that_is_perhaps_the_text_is_left_out():
    assert of_row("row-7") == {name.ROW_ID: "row-7"}
    assert of_row(LONG) == {}
