"""Rows of tables: what stands for no value is refused like ``None``, and a table is not read as its columns' names.

The stand-ins behave as the libraries' own do, whose names they have (pandas 3.1, polars 2.1, pyarrow 26, numpy 2.4).
"""

import decimal

import pytest

from batchclient import ConfigError, MissingField
from tests.shell.scripted import ScriptedTransport, make_client
from tests.shell.test_sync import make_sync

LIBRARIES = ("asyncio",)
"""Nothing here has to do with the event loop."""


class NAType:
    """Compared with itself it says neither yes nor no."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


class NaTType:
    def __eq__(self, other):
        return False


class MaskedConstant:
    def __eq__(self, other):
        return self

    def __bool__(self):
        return False


class bool_:
    """numpy's is no ``bool``."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return bool_(self.value == other.value)

    def __bool__(self):
        return self.value

    def __str__(self):
        return str(self.value)


class float32:
    def __eq__(self, other):
        return bool_(False)


datetime64 = type("datetime64", (float32,), {})


class StringScalar:
    __module__ = "pyarrow.lib"
    is_valid = False


class Form:
    """Somebody's own class, which is told from a scalar by where it comes from."""

    is_valid = False

    def __str__(self):
        return "a form"


class ndarray:
    """Many values: equal or not each for itself."""

    def __eq__(self, other):
        return ndarray()

    def __bool__(self):
        raise ValueError("the truth value of an array is ambiguous")

    def __str__(self):
        return "[1 2]"


MISSING = [
    (None, "null"),
    (float("nan"), "NaN"),
    (decimal.Decimal("nan"), "NaN"),
    (float32(), "NaN"),
    (datetime64(), "NaT"),
    (NAType(), "NA"),
    (NaTType(), "NaT"),
    (MaskedConstant(), "masked"),
    (StringScalar(), "null"),
]
IDS = [type(value).__name__ for value, _ in MISSING]


@pytest.mark.parametrize(("value", "called"), MISSING, ids=IDS)
async def test_what_stands_for_no_value_is_not_written_into_a_prompt(value, called):
    server = ScriptedTransport()
    documents = iter([{"text": "fine"}, {"text": value}])
    async with make_client(server) as client:
        rows = [row async for row in client.stream_map(documents, "Say {text}", ordered=True)]
        (text,) = [row async for row in client.stream_map([value], "{}")]
        (made,) = [row async for row in client.stream_map([value], lambda document: document)]
    assert server.prompts == [["Say fine"]]
    told = "" if called == "null" else f" ({called})"
    assert str(rows[1].error) == f"document 1: 'text' is empty{told}"
    assert rows[1].error.field == "text"
    assert str(text.error) == f"document 0: the document is empty{told}"
    assert {type(row.error) for row in (rows[1], text)} == {MissingField}
    assert str(made.error) == f"document 0: a prompt is a text or a sequence of token ids, not {called}"


async def test_what_is_a_value_is_written_as_it_was():
    server = ScriptedTransport()
    document = {"a": bool_(False), "b": ndarray(), "c": 0.0, "d": False, "e": float("inf"), "g": Form()}
    async with make_client(server) as client:
        await client.batch_map([document], "{a} {b} {c} {d} {e} {g}")
    assert server.prompts == [["false [1 2] 0.0 false inf a form"]]


@pytest.mark.parametrize(("value", "called"), MISSING, ids=IDS)
async def test_a_call_says_what_it_was_given_instead_of_a_text(value, called):
    async with make_client(ScriptedTransport()) as client:
        for call in (
            client.complete(value),
            client.embed(value),
            client.tokenize(value),
            client.score("query", value),
            client.score(value, "document"),
            client.rerank(value, ["document"]),
            client.chat([value]),
        ):
            with pytest.raises(ConfigError, match=rf"\b{called}\b"):
                await call


# Conversations -----------------------------------------------------------------------------------------------------


def user(content, **fields):
    return {"role": "user", "content": content, **fields}


around = {"type": "text"}
around["text"] = around

UNSENDABLE = [
    ([user("fine"), user("half \ud83d of one")], "messages[1].content holds a lone surrogate at character 5"),
    (
        [user([{"type": "text", "text": "x\udc00"}])],
        "messages[0].content[0].text holds a lone surrogate at character 1",
    ),
    ([user("x", name="\ud800")], "messages[0].name holds a lone surrogate at character 0"),
    ([{"role": "\udfff"}], "messages[0].role holds a lone surrogate at character 0"),
    ([user("x", **{"a\ud800": 1})], "messages[0] has a name that holds a lone surrogate at character 1"),
    ([user(float("nan"))], "messages[0].content is NaN"),
    ([user([{"type": "text", "text": NAType()}])], "messages[0].content[0].text is NA"),
    ([user("x", since=float("-inf"))], "messages[0].since is infinite"),
    ([user(b"x")], "messages[0].content is a bytes, which JSON has no form for"),
    ([user("x", **{"extra": {(1, 2): 3}})], "messages[0].extra has a name that is a tuple"),
    ([user([around])], "is nested too deeply, or within itself"),
]


@pytest.mark.parametrize(("messages", "why"), UNSENDABLE, ids=[why for _, why in UNSENDABLE])
async def test_a_conversation_that_cannot_be_sent_says_where_and_why(messages, why):
    server = ScriptedTransport()
    async with make_client(server) as client:
        with pytest.raises(ConfigError) as caught:
            await client.chat(messages, max_tokens=4)
        with pytest.raises(ConfigError):
            client.stream_chat(messages, max_tokens=4)
        (row,) = [row async for row in client.stream_map([messages], lambda document: document, max_tokens=4)]
    assert why in str(caught.value)
    assert "half" not in str(caught.value)
    assert (caught.value.field, row.error.field) == ("messages", "messages")
    assert str(row.error) == f"document 0: {caught.value}"
    assert caught.value.__context__ is None, "it would hold the conversation"
    assert server.sent == []


async def test_a_text_to_be_ranked_that_cannot_be_sent_says_which_it_is():
    async with make_client(ScriptedTransport()) as client:
        for text, why in (("a\ud800", "holds a lone surrogate at character 1"), (float("nan"), "is NaN, not a text")):
            with pytest.raises(ConfigError, match=f"document 2 {why}") as caught:
                await client.rerank("query", ["a", "ü", text])
            assert caught.value.field == "documents"


# Frames ------------------------------------------------------------------------------------------------------------


class Frame:
    """Iterates over its columns' names, or over columns."""

    @property
    def columns(self):
        raise AssertionError("a lazy frame would compute them")

    def __iter__(self):
        return iter(["text", "title"])


class DataFrame(Frame):
    """As pandas'."""

    dtypes = property(lambda self: {})

    def to_dict(self, orient):
        raise AssertionError("it may be large")


class PolarsFrame(Frame):
    schema = property(lambda self: {})

    def iter_rows(self, *, named):
        raise AssertionError("it may be large")

    to_dict = iter_rows


class LazyFrame(Frame):
    """As polars'."""

    schema = property(lambda self: {})

    def collect(self):
        raise AssertionError("it may be large")


class Table:
    """As pyarrow's: iterated by index."""

    columns = schema = property(lambda self: [])

    def to_pylist(self):
        raise AssertionError("it may be large")

    def __getitem__(self, place):
        return [["a"], ["b"]][place]


class Worksheet:
    """It has columns, and iterates over rows."""

    columns = property(lambda self: [])

    def __iter__(self):
        return iter(["a", "b"])


class Dataset(Worksheet):
    """The same, with ``columns`` to choose some."""

    schema = None

    def columns(self, *names):
        raise AssertionError


FRAMES = [
    (DataFrame(), "docs.to_dict('records')"),
    (PolarsFrame(), "docs.iter_rows(named=True)"),
    (LazyFrame(), "docs.collect()"),
    (Table(), "docs.to_pylist()"),
]


@pytest.mark.parametrize(("frame", "way_out"), FRAMES, ids=[type(frame).__name__ for frame, _ in FRAMES])
async def test_a_table_is_refused_with_the_way_out(frame, way_out):
    server = ScriptedTransport()
    async with make_client(server) as client:
        for refused in (client.stream_map, client.batch_map):
            with pytest.raises(ConfigError) as caught:
                await refused(frame, "Say {}")
            assert caught.value.field == "docs"
            assert type(frame).__name__ in str(caught.value)
            assert way_out in str(caught.value)
        with pytest.raises(ConfigError, match="iterates over columns"):
            await client.rerank("query", frame)
    with make_sync(server) as client:
        for refused in (client.stream_map, client.batch_map):
            with pytest.raises(ConfigError) as caught:
                refused(frame, "Say {}")
            assert way_out in str(caught.value)
    assert server.sent == []


@pytest.mark.parametrize("documents", [Worksheet(), Dataset()])
async def test_what_iterates_over_rows_is_read(documents):
    async with make_client(ScriptedTransport()) as client:
        assert len(await client.batch_map(documents, "Say {}")) == 2
