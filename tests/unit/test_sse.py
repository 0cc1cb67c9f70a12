"""Server-sent events, whatever the split points."""

from hypothesis import given
from hypothesis import strategies as st

from batchclient.dialects._sse import EventStream


def parse(*chunks):
    stream = EventStream()
    return [payload for chunk in chunks for payload in stream.feed(chunk)] + stream.end()


def test_a_stream_is_read_whole_and_byte_by_byte():
    for stream, payloads in [
        (b"", []),
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b": ping\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"\n\n\n\n", []),
        (b"data:\n\n", [b""]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"data: a\r", [b"a"]),
        (b"data: a\r\n", [b"a"]),
        (b"data: [DONE]\n\n", [b"[DONE]"]),
        ("data: né\u2028\u0085\n\n".encode(), ["né\u2028\u0085".encode()]),
        (b'data: {"a": "data: b"}\n\n', [b'{"a": "data: b"}']),
        (b'event: error\ndata: {"a": 1}\n\ndata: b\n\n', [b'{"error":{"a": 1}}', b"b"]),
        (b"event:error\ndata: no\n\ndata: b\n\n", [b'{"error":"no"}', b"b"]),
        (b"event: error\n: no\n\ndata: b\n\n", [b'{"error":"no"}', b"b"]),
        (b": no\nid: 1\nevent: error\n\n", [b'{"error":"no"}']),
        (b"event: error\n: no\n: more\n\n", [b'{"error":"no more"}']),
        (b": ping\n\nevent: error\nretry: 5\n\n", [b'{"error":"the server told no more"}']),
        (b"event: error\n: ping\ndata: no\n\n", [b'{"error":"no"}']),
        (b"event: error", [b'{"error":"the server told no more"}']),
        (b'error: {"a": 1}\n\n', [b'{"error": {"a": 1}}']),
        (b"data:a\n\ndata: b", [b"a", b"b"]),
    ]:
        assert parse(stream) == payloads
        assert parse(*[stream[i : i + 1] for i in range(len(stream))]) == payloads


events = st.lists(
    st.tuples(
        st.sampled_from([b"data: ", b"data:", b": ", b"event: "]),
        st.text(alphabet="ab:\u00e9 {}", max_size=8).map(str.encode),
        st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r"]),
    )
).map(lambda lines: b"".join(part for line in lines for part in line))


@given(events, st.data())
def test_split_points_make_no_difference(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*chunks) == parse(stream)


@given(st.binary(), st.binary())
def test_no_bytes_are_too_strange_to_read(one, other):
    assert parse(one, other) == parse(one + other)


def test_an_event_is_handed_out_as_soon_as_its_blank_line_came():
    stream = EventStream()
    assert stream.feed(b"data: a\n") == []
    assert stream.feed(b"\n") == [b"a"]


def test_a_cr_may_turn_out_to_be_half_of_a_crlf():
    stream = EventStream()
    assert stream.feed(b"data: a\r") == []
    assert stream.feed(b"\n\r") == [b"a"]
    assert stream.feed(b"\ndata: b\n\n") == [b"b"]
