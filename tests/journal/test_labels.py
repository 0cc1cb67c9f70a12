"""Labels from a journal: of a map's rows, and of the calls of a function."""

from tests.shell.test_labels import LABELS, client_of, said
from tests.shell.test_probabilities import Model, near

LIBRARIES = ("asyncio",)


async def test_a_map_s_rows_have_their_labels_again(path):
    client, server = client_of(said("Very bad"))
    async with client:
        for _ in range(2):
            (answer,) = await client.batch_map(["y"], "{}", labels=LABELS, journal=path)
            assert answer.label == "very bad"
    assert len(server.sent) == 1


async def test_a_function_s_calls_have_their_labels_again(path):
    async def judge(row, client):
        return (await client.complete(row, labels=LABELS)).label

    client, server = client_of(said("Good."))
    async with client:
        for _ in range(2):
            assert [row.answer async for row in client.run(judge, ["x"], journal=path)] == ["good"]
    assert len(server.sent) == 1


async def test_other_labels_are_another_question(path):
    client, server = client_of(said("good"), said("good"))
    async with client:
        for labels in (LABELS, ["good", "fair"]):
            (row,) = [row async for row in client.stream_map(
                [{"prompt": "x", "params": {"labels": labels}}], journal=path)]  # fmt: skip
            assert row.answer.label == "good"
    assert len(server.sent) == 2


async def test_probabilities_are_kept_and_asked_for_no_more(path):
    async def judge(row, client):
        return (await client.complete(row, labels=["good", "bad"], probabilities=True)).probabilities

    model = Model()
    async with model.client() as client:
        for _ in range(2):
            (answer,) = await client.batch_map(["y?"], "{}", labels=["good", "bad"], probabilities=True, journal=path)
            assert answer.label == "bad" and answer.probabilities == near({"good": 0.2, "bad": 0.5}, 0.3)
        asked = len(model.server.sent)
        for _ in range(2):
            (row,) = [row async for row in client.run(judge, ["x?"], journal=path.with_name("other"))]
            assert row.answer == near({"good": 0.2, "bad": 0.5}, 0.3)
    assert len(model.server.sent) == asked + 1
