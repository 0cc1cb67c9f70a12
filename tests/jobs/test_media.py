"""Pictures and sounds of rows: from where they may come, and which part they become."""

import asyncio
import base64
import os
import threading

import pytest

from batchclient.jobs import BadRow, Row
from batchclient.jobs import media as media_module
from batchclient.jobs.source import Source
from batchclient.jobs.media import Media

PNG, JPEG, WAV = b"\x89PNG\r\n\x1a\n..", b"\xff\xd8\xff..", b"RIFF....WAVE.."


def data(kind, content):
    return {
        "type": f"{kind.partition('/')[0]}_url",
        f"{kind.partition('/')[0]}_url": {"url": f"data:{kind};base64,{base64.b64encode(content).decode()}"},
    }


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "a.png").write_bytes(PNG)
    (tmp_path / "root" / "sub" / "b.txt").write_bytes(JPEG)
    (tmp_path / "out.png").write_bytes(PNG)
    return tmp_path / "root"


def added(root, value, item="Look", **kinds):
    return Media(["it"], **kinds, root=None if root is None else str(root)).add(item, Row({"it": value}, 7))


def test_media_become_parts_of_the_last_message_of_the_users(root):
    png, jpeg, text = data("image/png", PNG), data("image/jpeg", JPEG), {"type": "text", "text": "Look"}
    url = {"type": "image_url", "image_url": {"url": "https://host/x.png"}}
    for value, parts in {
        "a.png": [png],
        str(root / "a.png"): [png],
        "sub/../sub/b.txt": [jpeg],
        "https://host/x.png": [url],
    }.items():
        assert added(root, value) == [{"role": "user", "content": [*parts, text]}]
    assert added(None, PNG) == added(None, {"bytes": PNG, "path": None}) == [{"role": "user", "content": [png, text]}]
    assert added(root, {"bytes": None, "path": "a.png"})[0]["content"] == [png, text]
    assert added(root, ["a.png", None, JPEG])[0]["content"] == [png, jpeg, text]
    assert added(root, None, "Look") == [{"role": "user", "content": "Look"}]
    talk = [
        {"role": "user", "content": "1"},
        {"role": "user", "content": [text]},
        {"role": "assistant", "content": "2"},
    ]
    assert added(root, "a.png", talk) == [talk[0], {"role": "user", "content": [png, text]}, talk[2]]
    sounds = Media([], ["it"]).add("Hear", Row({"it": WAV}, 1))
    assert sounds[0]["content"] == [data("audio/wav", WAV), {"type": "text", "text": "Hear"}]


def test_what_is_no_medium_below_the_root_fails_its_row(root, monkeypatch):
    monkeypatch.setattr(media_module, "MOST_BYTES", 19)
    (root / "link.png").symlink_to(root.parent / "out.png")
    (root / "up").symlink_to(root.parent)
    (root / "circle").symlink_to("circle")
    (root / "long.png").write_bytes(PNG * 3)
    os.mkfifo(root / "pipe")
    out = "'it' leads out of --media-root"
    for value, why in [
        ("../out.png", out),
        (str(root.parent / "out.png"), out),
        ("link.png", out),
        ("up/out.png", out),
        ("circle", "'it': Too many levels of symbolic links"),
        ("none.png", "'it': No such file or directory"),
        ("a\0.png", "embedded null"),
        ("pipe", "'it' is no file"),
        ("sub", "'it' is no file"),
        ("long.png", "'it' is too long"),
        ([PNG, PNG], "'it' is too long"),
        (b"text", "'it' has no image of a type"),
        ("s3://b/a.png", "'it': No such file or directory"),
        (3, "'it' is a int, and no path, URL or bytes"),
        ({"src": "a"}, "'it' is a NoneType, and no path"),
    ]:
        with pytest.raises(BadRow, match="line 7") as refused:
            added(root, value)
        assert why in str(refused.value), value
    with pytest.raises(BadRow, match="no --media-root says"):
        added(None, "a.png")
    with pytest.raises(BadRow, match="line 7 has no field 'it'"):
        Media(["it"]).add("", Row({}, 7))
    with pytest.raises(BadRow, match="no message of the user's"):
        added(root, "a.png", [{"role": "system", "content": "s"}])


def test_the_media_of_a_row_have_64_mib_at_most():
    longest = PNG + bytes((64 << 20) - len(PNG))
    (message,) = added(None, longest)
    assert len(message["content"][0]["image_url"]["url"]) > 64 << 20
    with pytest.raises(BadRow, match="'it' is too long: the media of a row have at most 64 MiB"):
        added(None, longest + b"x")


def test_media_of_rows_without_an_answer_are_bounded_by_their_bytes(root, monkeypatch):
    media = Media(["a"], root=root)
    rows = [Row({"a": ["a.png", "a.png"]}, number) for number in range(4)]
    size = sum(len(part["image_url"]["url"]) for part in media.load(rows[0]).media)
    monkeypatch.setattr("batchclient.jobs.media.MOST_OPEN_BYTES", 3 * size)
    for row in rows[:3]:
        media.read_ahead(row)
    last = threading.Thread(target=media.read_ahead, args=(rows[3],), daemon=True)
    last.start()
    last.join(0.02)
    assert last.is_alive()
    media.leave(rows[1])
    last.join(10)
    assert not last.is_alive()
    monkeypatch.setattr("batchclient.jobs.media.MOST_OPEN_BYTES", 1)
    for row in rows:
        media.leave(row)
    media.read_ahead(rows[0])


def test_media_are_loaded_in_a_thread_and_a_few_rows_ahead(tmp_path):
    loaded = []

    def load(row):
        loaded.append(threading.current_thread())
        return row

    async def take():
        taken = 0
        async for _ in source.rows():
            taken += 1
            assert len(loaded) <= taken + 10
        return taken

    path = tmp_path / "in.txt"
    path.write_text("row\n" * 40)
    with Source(path) as source:
        source.load(load)
        assert asyncio.run(take()) == len(loaded) == 40
    assert threading.main_thread() not in loaded
