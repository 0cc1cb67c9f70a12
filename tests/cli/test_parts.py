"""Parts without Redis: cut and done in this process. ``tests/redis`` has them as messages."""

import asyncio
import hashlib
import inspect
import json
import os
from pathlib import Path

import pytest

from batchclient import BatchClient
from batchclient.cli._parts import PartRunner, part_messages
from batchclient.cli._refusal import Refusal, params_from
from batchclient.errors import AuthenticationFailed, ServerFault
from batchclient.testing import MockLLM

ROW_CALL = {"prompt": "{text}", "system": None, "row_call": "complete", "params": {"max_tokens": 1}}


def cut(folder, rows, count=7, **options):
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"word {number}"}) + "\n" for number in range(count)))
    options = {"resume": False} | options
    return list(part_messages(str(source), None, rows, str(folder / "out" / "{part}.jsonl"), ROW_CALL, **options))


@pytest.mark.parametrize(("rows", "parts"), [(1, 7), (3, 3), (7, 1), (100, 1)])
def test_ranges_are_the_file_in_order(tmp_path, rows, parts):
    messages = cut(tmp_path, rows)
    assert len(messages) == parts
    ends = [(each["start"], each["end"]) for each in messages]
    assert ends[0][0] == 0 and ends[-1][1] == (tmp_path / "in.jsonl").stat().st_size
    assert all(before[1] == after[0] for before, after in zip(ends, ends[1:], strict=False))
    assert sorted(each["output"] for each in messages) == [each["output"] for each in messages]
    assert [each["output"] for each in cut(tmp_path, rows)] == [each["output"] for each in messages]


def test_a_part_that_is_there_is_refused_or_left_out(tmp_path):
    messages = cut(tmp_path, 3)
    sealed = Path(messages[1]["output"])
    sealed.parent.mkdir()
    sealed.touch()
    with pytest.raises(Refusal, match="the file exists; --resume leaves out"):
        cut(tmp_path, 3)
    assert [each["id"] for each in cut(tmp_path, 3, resume=True)] == [messages[0]["id"], messages[2]["id"]]


def test_an_empty_file_has_no_part(tmp_path):
    assert cut(tmp_path, 3, count=0) == []


def run(folder, mock, *parts):
    async def main():
        async with mock.client() as client:
            runner = PartRunner(folder)
            return await asyncio.gather(*(runner(client, part) for part in parts), return_exceptions=True)

    return asyncio.run(main())


def test_a_part_s_params_are_no_arguments_of_the_map(tmp_path):
    """Whoever may write to the stream would choose a file for the journal."""
    [part] = cut(tmp_path, 100)
    names = [name for name in inspect.signature(BatchClient.stream_map).parameters if name != "params"]
    assert {"journal", "progress"} <= {*names}
    with MockLLM() as mock:
        errors = run(tmp_path, mock, *(part | {"params": {name: str(tmp_path / "taken")}} for name in names))
        assert not mock.calls
    for name, error in zip(names, errors, strict=True):
        assert isinstance(error, ValueError) and str(error).startswith(f"{name} is no field of a row's call"), name
        with pytest.raises(Refusal, match=f"--param {name}: "):
            params_from([f'{name}="x"'])
    assert not (tmp_path / "taken").exists()


def test_of_two_workers_the_first_seals_a_part(tmp_path):
    [part] = cut(tmp_path, 100)
    answers = iter(range(100))
    with MockLLM() as mock:
        mock.when().answer(lambda call: f" {next(answers)}")
        told = run(tmp_path, mock, part, part)
    [file] = (tmp_path / "out").iterdir()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert [each["sha256"] for each in told] == [digest, digest]
    assert sorted(each.get("was_sealed", False) for each in told) == [False, True]
    assert {each["rows"] for each in told} == {7}


def test_a_part_whose_rows_are_all_refused_for_the_key_is_not_sealed(tmp_path):
    [part] = cut(tmp_path, 100)
    with MockLLM() as mock:
        mock.when().fail(401)
        [error] = run(tmp_path, mock, part)
    assert isinstance(error, AuthenticationFailed)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_that_is_cancelled_leaves_nothing(tmp_path):
    [part] = cut(tmp_path, 100)

    async def main(mock):
        async with mock.client() as client:
            task = asyncio.create_task(PartRunner(tmp_path)(client, part))
            while not mock.calls:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()

    with MockLLM() as mock:
        mock.when().hang()
        asyncio.run(main(mock))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 401}])
def test_a_part_is_not_sealed_where_row_after_row_fails_for_no_fault_of_its_own(tmp_path, fault):
    """A key that is withdrawn, or servers that fall ill, in the midst of a part."""
    [part] = cut(tmp_path, 100, count=60)
    with MockLLM() as mock:
        mock.when(lambda call: int(call.prompt.split()[1]) >= 30).fail(fault["status"])
        mock.when().answer("yes")
        [error] = run(tmp_path, mock, part)
    assert isinstance(error, (AuthenticationFailed, ServerFault))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_with_some_failed_rows_is_sealed(tmp_path):
    [part] = cut(tmp_path, 100, count=60)
    with MockLLM() as mock:
        mock.when(lambda call: int(call.prompt.split()[1]) % 2 == 0).fail(500)
        mock.when().answer("yes")
        [told] = run(tmp_path, mock, part)
    assert (told["rows"], told["failed"]) == (60, 30)


def test_a_pipe_is_no_part_and_is_not_waited_for(tmp_path):
    [part] = cut(tmp_path, 100)
    os.mkfifo(tmp_path / "pipe")
    with MockLLM() as mock:
        [error] = run(tmp_path, mock, part | {"input": str(tmp_path / "pipe")})
    assert isinstance(error, ValueError) and "is no file" in str(error)


def test_a_file_that_is_cut_off_under_the_worker_makes_no_part(tmp_path):
    [part] = cut(tmp_path, 30_000, count=20_000)
    with MockLLM() as mock:

        def answer(call):
            os.truncate(tmp_path / "in.jsonl", 100)
            return "yes"

        mock.when().answer(answer)
        [error] = run(tmp_path, mock, part)
    assert isinstance(error, ValueError) and "another than the one that was enqueued" in str(error)
    assert list((tmp_path / "out").iterdir()) == []
