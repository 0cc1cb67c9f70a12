"""What each server is sent for ``labels``: its own words for one of some texts, or nothing."""

import pytest

from batchclient.dialects import DIALECTS, make_dialect
from batchclient.dialects._fingerprints import ServerFacts
from tests.replies.harness import asked, chats, sent

LABELS = ["good", 'not "a+b"\\']
TEXTS = ["good", " good", 'not "a+b"\\', ' not "a+b"\\']
REGEX = r' ?(good|not "a\+b"\\)'
GRAMMAR = r'root ::= "good" | " good" | "not \"a+b\"\\" | " not \"a+b\"\\"'
CHOICE = {"structured_outputs": {"choice": TEXTS}}
BOUND = len(LABELS[1]) + 8


@pytest.mark.parametrize(
    ("dialect", "path", "form"),
    [
        ("vllm", "/v1/completions", CHOICE),
        ("llamacpp", "/completion", {"grammar": GRAMMAR}),
        *((name, "/v1/completions", {}) for name in ("tgi", "trtllm", "openai", None)),
    ],
)
def test_a_completion_asks_for_one_of_the_labels_in_the_server_s_words(dialect, path, form):
    where, body = sent(asked("a", labels=LABELS, dialect=dialect, streamed=False))
    bound = {"n_predict": BOUND, "stream": False} if dialect == "llamacpp" else {"max_tokens": BOUND}
    model = {} if dialect == "llamacpp" else {"model": "tiny"}
    assert (where, body) == (path, {"prompt": "a", **model, **bound, **form})


def test_sglang_is_sent_a_regex_by_its_own_route():
    path, body = sent(asked("a", "b", labels=LABELS, dialect="sglang", streamed=False))
    assert path == "/generate"
    assert body["sampling_params"] == {"regex": REGEX, "max_new_tokens": BOUND}


@pytest.mark.parametrize(
    ("dialect", "form"),
    [
        ("vllm", CHOICE),
        ("sglang", {"regex": REGEX}),
        ("llamacpp", {"grammar": GRAMMAR}),
        ("tgi", {"response_format": {"type": "regex", "value": REGEX}}),
        ("openai", {}),
        (None, {}),
    ],
)
def test_a_chat_asks_for_one_of_the_labels_in_the_server_s_words(dialect, form):
    _, body = sent(chats(labels=LABELS, dialect=dialect, streamed=False))
    messages = [{"role": "user", "content": "hi"}]
    assert body == {"messages": messages, "model": "tiny", "max_tokens": BOUND, **form}


def test_a_list_of_chats_asks_for_it_too():
    path, body = sent(chats(2, labels=LABELS, streamed=False))
    assert path == "/v1/chat/completions/batch" and body["structured_outputs"] == CHOICE["structured_outputs"]


def test_a_vllm_before_0_11_is_sent_the_older_name():
    old = make_dialect("vllm", lacks=ServerFacts("vllm", "0.10.2").lacks)
    _, body = sent(asked("a", labels=LABELS, streamed=False), old)
    assert body["guided_choice"] == TEXTS and "structured_outputs" not in body


def test_a_body_of_another_program_s_goes_as_it_is():
    _, body = sent(asked("a", labels=["x"], verbatim=True, streamed=False))
    assert body["labels"] == ["x"]


@pytest.mark.parametrize("name", [each for each in DIALECTS if each != "tei"])
def test_the_caller_s_own_bound_stays(name):
    _, body = sent(chats(labels=LABELS, max_completion_tokens=3, dialect=name, streamed=False))
    assert body["max_completion_tokens"] == 3 and "max_tokens" not in body
