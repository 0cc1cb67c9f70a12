"""A sample of the hashes, and the whole public surface; ``python -m tests.snapshots`` checks all."""

import inspect

import pytest

from tests.playbook import test_endings, test_refill
from tests.snapshots.core import lines_of_seed, recorded
from tests.snapshots.snapshots import SEEDS, hash_of, read_hashes, surface_differences
from tests.snapshots.wire import lines_of_wire, names_of_wire

pytestmark = pytest.mark.long

COMMITTED = read_hashes()
HOW = "to see what changed, and to write it anew if it was meant: see tests/snapshots/__main__.py"
RECORDINGS = [
    "vllm/plain_list", "vllm/chat_stream_two_events", "vllm/models", "llamacpp/native_list", "transformers/error_list",
    "litellm/embeddings", "simulated/sglang as sglang rerank",
]  # fmt: skip
STORIES = [
    pytest.param(module, name, id=name)
    for module in (test_endings, test_refill)
    for name, story in vars(module).items()
    if name.startswith("test_") and not inspect.signature(story).parameters
]


@pytest.mark.parametrize("seed", [0, 3, 17, 99])
def test_a_seed_of_the_simulation_is_the_same_run(seed):
    assert hash_of(lines_of_seed(seed)) == COMMITTED[f"simulation/{seed}"], HOW


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_same_bytes_are_sent_and_the_same_is_told(name):
    assert hash_of(lines_of_wire(name)) == COMMITTED[f"wire/{name}"], HOW


@pytest.mark.parametrize(("module", "name"), STORIES)
def test_a_story_has_the_same_commands(module, name):
    with recorded() as record:
        getattr(module, name)()
    file = module.__name__.rpartition(".")[2]
    assert hash_of(record.lines()) == COMMITTED[f"playbook/{file}.py::{name}"], HOW


def test_the_public_surface_is_the_same():
    assert surface_differences() == [], HOW


def test_every_seed_and_every_recording_has_a_hash():
    expected = {f"simulation/{seed}" for seed in SEEDS} | {f"wire/{name}" for name in names_of_wire()}
    assert expected == {name for name in COMMITTED if not name.startswith("playbook/")}
