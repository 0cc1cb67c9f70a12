"""A user's own table of batch sizes: what it may answer, and what is said of what it may not."""

import logging

import pytest

from batchclient._shell.batch_size import BatchSize


def test_the_answer_for_the_queue_depth():
    assert BatchSize(lambda depth: depth // 2)(9) == 4


@pytest.mark.parametrize("answer", [None, "8", 8.0, True, [8]])
def test_what_is_no_whole_number_is_ignored_and_said_once(answer, caplog):
    choose = BatchSize(lambda depth: answer)
    with caplog.at_level(logging.DEBUG, "batchclient"):
        assert [choose(depth) for depth in (1, 2, 3)] == [None] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert type(answer).__name__ in caplog.text


def test_an_exception_is_ignored_and_said_once_with_its_trace(caplog):
    choose = BatchSize(lambda depth: 1 // 0)
    with caplog.at_level(logging.DEBUG, "batchclient"):
        assert [choose(depth) for depth in (1, 2, 3)] == [None] * 3
    assert len(caplog.records) == 1
    assert "ZeroDivisionError" in caplog.text


def test_it_may_fail_now_and_then():
    choose = BatchSize(lambda depth: 8 // (depth - 2))
    assert [choose(depth) for depth in (1, 2, 3, 4)] == [-8, None, 8, 4]
