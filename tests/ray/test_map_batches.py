"""``MapBatches`` in real Ray Data: rows, errors, formats, and an actor that dies."""

import gc
import os
import signal
import time

import pytest

pytest.importorskip("ray", reason="Ray is not installed here: make test-extra WHICH=ray")
import pyarrow
import pyarrow.parquet
from ray.exceptions import RayError

from batchclient.integrations.ray import MapBatches
from batchclient.simulator import EmbeddedServer, expected_text

pytestmark = pytest.mark.filterwarnings("ignore")
"""Ray's own, of the kind that is an error here."""
FORMATS = ("numpy", "pandas", "pyarrow", "default")


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer("instant", model="m") as running:
        yield running


def texts(ray, count, blocks=4):
    return ray.data.from_items([{"id": number, "text": f"text {number}"} for number in range(count)],
                               override_num_blocks=blocks)  # fmt: skip


def mapped(ray, dataset, base_url, *, batch_format="default", batch_size=32, max_concurrency=4, **arguments):
    return dataset.map_batches(
        MapBatches,
        fn_constructor_kwargs={"base_url": base_url, "prompt": "Say {text}", **arguments},
        compute=ray.data.ActorPoolStrategy(size=1),
        batch_size=batch_size,
        batch_format=batch_format,
        max_concurrency=max_concurrency,
    )


@pytest.mark.parametrize("batch_format", FORMATS)
def test_each_row_has_its_answer_whatever_the_format_of_a_batch(ray, server, batch_format):
    rows = mapped(ray, texts(ray, 200), server.base_url, batch_format=batch_format, max_tokens=3, temperature=0)
    found = rows.take_all()
    assert sorted(row["id"] for row in found) == list(range(200))
    for row in found:
        assert row["completion"] == expected_text(f"Say {row['text']}", max_tokens=3, temperature=0)
        assert (row["finish_reason"], row["completion_tokens"], row["error"]) == ("length", 3, None)


@pytest.mark.parametrize("batch_format", FORMATS)
def test_a_row_that_fails_is_an_error_in_a_column(ray, server, batch_format):
    dataset = ray.data.from_items([{"text": None if number == 5 else f"t {number}"} for number in range(20)])
    found = mapped(ray, dataset, server.base_url, batch_format=batch_format, max_tokens=1).take_all()
    (failed,) = [row for row in found if row["error"] is not None]
    assert failed["error"].startswith("MissingField: 'text' is empty")
    assert failed["completion"] is failed["prompt_tokens"] is None
    assert sum(row["completion"] is not None for row in found) == 19


def test_every_file_has_the_same_schema_where_a_block_has_failed_as_a_whole(ray, server, tmp_path):
    """A column of nulls alone has a type, too: a reader takes the schema of the first file."""

    def prompt(row):
        if row["id"] < 20:
            raise ValueError("a secret")
        return row["text"]

    dataset = texts(ray, 40, blocks=2)
    mapped(ray, dataset, server.base_url, prompt=prompt, batch_size=20, max_tokens=1).write_parquet(str(tmp_path))
    files = sorted(tmp_path.glob("*.parquet"))
    schemas = {str(pyarrow.parquet.read_schema(file).remove_metadata()) for file in files}
    assert len(files) == 2
    assert len(schemas) == 1
    errors = [row["error"] for row in ray.data.read_parquet(str(tmp_path)).take_all()]
    assert sorted(errors, key=str) == [None] * 20 + ["ValueError"] * 20


def test_the_other_columns_pass_as_they_are(ray, server):
    columns = {
        "number": pyarrow.array([1, None, 3]),
        "list": pyarrow.array([["a"], [], None]),
        "blob": pyarrow.array([b"1", None, b"3"]),
        "choice": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
    }
    given = pyarrow.table(columns)
    arguments = {"prompt": "Say {number}", "batch_format": "pyarrow", "max_tokens": 2, "temperature": 0}
    rows = mapped(ray, ray.data.from_arrow(given), server.base_url, **arguments)
    (found,) = ray.get(rows.to_arrow_refs())
    assert found.select(list(columns)).equals(given)
    one, nothing, three = found.column("completion").to_pylist()
    assert nothing is None
    assert [one, three] == [expected_text(f"Say {number}", max_tokens=2, temperature=0) for number in (1, 3)]


def test_vectors_are_lists_of_numbers(ray, server):
    found = mapped(ray, texts(ray, 20), server.base_url, call="embed").take_all()
    assert all(isinstance(row["embedding"][0], float) and row["error"] is None for row in found)
    assert {len(row["embedding"]) for row in found} == {len(found[0]["embedding"])}


def test_a_callable_makes_conversations_of_rows(ray, server):
    def conversation(row):
        return [{"role": "user", "content": row["text"]}]

    found = mapped(ray, texts(ray, 20), server.base_url, call="chat", prompt=conversation, max_tokens=2).take_all()
    assert all(row["completion"] and row["message"] is None and row["error"] is None for row in found)


def test_the_collector_at_every_row_ends_nothing(ray, server):
    def collecting(row):
        gc.collect()
        return f"Say {row['text']}"

    found = mapped(ray, texts(ray, 60), server.base_url, prompt=collecting, max_tokens=1).take_all()
    assert sum(row["completion"] is not None for row in found) == 60


def test_a_batch_that_is_long_in_reading_holds_up_no_call(ray, monkeypatch):
    """Without ``max_concurrency`` the actor reads, too: in Ray's loop, beside batches at work."""

    def read(row):
        if row["id"] == 16:
            # The first batch of four has ended, three are under way.
            time.sleep(4.0)
        return row

    def prompt(row):
        if row["id"] < 4:
            raise ValueError("ends the first batch before it is sent")
        return row["text"]

    # A block for each row: a batch is read once there is room for it, as in a large file.
    monkeypatch.setattr(ray.data.DataContext.get_current(), "target_max_block_size", 1)
    with EmbeddedServer("instant", model="m", faults=["slow=0.5"]) as slow:
        arguments = {"base_url": slow.base_url, "prompt": prompt, "timeout_s": 2.5, "max_tokens": 1}
        found = (
            texts(ray, 20, blocks=1)
            .map(read)
            .map_batches(
                MapBatches,
                fn_constructor_kwargs=arguments,
                compute=ray.data.ActorPoolStrategy(size=1),
                batch_size=4,
            )
            .take_all()
        )
    assert {row["id"]: row["error"] for row in found if row["error"] is not None} == dict.fromkeys(
        range(4), "ValueError"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_token": 1}, "max_token"),
        ({"prompt": "no field"}, "the template has no field"),
    ],
)
def test_what_is_wrong_ends_the_data_set_with_a_sentence_and_sends_nothing(ray, server, arguments, said):
    before = server.prompts
    with pytest.raises((RayError, ValueError, RuntimeError)) as ended:
        mapped(ray, texts(ray, 20), server.base_url, **arguments).take_all()
    assert said in str(ended.value)
    assert server.prompts == before


def test_an_actor_that_dies_repeats_its_blocks_only(ray, server, tmp_path):
    """The actor is killed once, in the middle of 40 blocks."""
    killed = tmp_path / "killed"

    def deadly(row):
        if row["id"] == 500 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row["text"]

    before = server.prompts
    found = mapped(
        ray, texts(ray, 1000, blocks=40), server.base_url, prompt=deadly, batch_size=25, max_concurrency=2, max_tokens=1
    ).take_all()
    assert killed.exists()
    assert sorted(row["id"] for row in found) == list(range(1000))
    assert all(row["error"] is None for row in found)
    # Blocks of 25 rows, two of them at work at once.
    assert server.prompts - before - 1000 <= 4 * 25
