"""The table of checks: facts in, findings out."""

from dataclasses import replace

import pytest

from batchclient._doctor.checks import CHECKS
from batchclient._doctor.facts import Facts, Finding, Queue, Weight
from batchclient._doctor.report import report_on
from batchclient.dialects import DIALECTS

from .conftest import ids

GOOD = Facts(
    "http://llm/v1",
    "vllm",
    "vllm 0.32.0",
    ("m",),
    "m",
    max_len=4096,
    slots=256,
    kv_tokens=100_000,
    kv_share=0.92,
    prefix_caching=True,
    list_cap=1024,
    tells_load=True,
    served=1000,
    longest=2000,
    mean_len=500.0,
    preempted=0,
    others=0,
    calls="completion",
    event_per_token=False,
    refusal="",
    serial=0,
)
CASES = {
    "url-without-v1": ({"lacks_v1": True}, {"lacks_v1": False}),
    "several-models": ({"needs_model": True, "models": ("a", "b")}, {"models": ("a", "b")}),
    "lists-refused": ({"refusal": "a list of 8 was refused"}, {"refusal": ""}),
    "lists-serial": ({"serial": 2}, {"serial": 1}),
    "lists-short": ({"list_cap": 4}, {"list_cap": 32}),
    "event-per-token": ({"event_per_token": True}, {"event_per_token": False}),
    "prefix-caching-off": ({"prefix_caching": False}, {"prefix_caching": None}),
    "few-sequences": ({"slots": 50}, {"slots": 51}),
    "sequences-wait": ({"queue": Queue(8, 32, 0.1)}, {"queue": Queue(8, 32, 0.5)}),
    "memory-share-low": ({"kv_share": 0.5, "preempted": 50}, {"kv_share": 0.5, "preempted": 49}),
    "model-length-high": ({"max_len": 16_000}, {"max_len": 15_999}),
    "no-metrics": ({"tells_load": False}, {"tells_load": None}),
}
"""By check: facts that are found wanting, and their neighbours that are not."""


def test_a_good_server_has_no_finding_and_no_open_question():
    report = report_on(GOOD)
    assert (report.findings, report.unknown, report.works) == ((), (), True)


def test_each_check_has_a_case():
    assert [check.__name__.replace("_", "-") for check in CHECKS] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_check_finds_its_fault_and_nothing_beside(name):
    wanting, neighbour = CASES[name]
    assert ids(report_on(replace(GOOD, **wanting))) == [name]
    assert ids(report_on(replace(GOOD, **neighbour))) == []


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_finding_has_a_sentence_a_setting_and_what_it_was_seen_from(kind):
    for wanting, _ in CASES.values():
        for finding in report_on(replace(GOOD, **{**wanting, "kind": kind})).findings:
            assert finding.sentence.endswith(".")
            assert len(finding.sentence.split()) <= 26
            assert finding.setting
            assert finding.seen
            assert "None" not in f"{finding.sentence} {finding.setting} {finding.seen}"


@pytest.mark.parametrize(
    ("missing", "question"),
    [
        ({"refusal": None}, "whether lists of prompts are taken"),
        ({"serial": None}, "whether the prompts of a list are served together"),
        ({"event_per_token": None}, "how many events a streamed answer has"),
        ({"prefix_caching": None}, "whether beginnings of prompts are cached"),
        ({"slots": None}, "whether the KV cache has room for more sequences than the server runs at once"),
        ({"max_len": None}, "whether the model's length is far above the lengths asked for"),
        ({"tells_load": None}, "whether a metrics page tells the load"),
    ],
)
def test_without_its_facts_a_check_asks_its_question(missing, question):
    report = report_on(replace(GOOD, **missing))
    assert (report.findings, report.unknown) == ((), (question,))


@pytest.mark.parametrize(
    ("wanting", "status"),
    [
        ({"prefix_caching": False}, True),
        ({"refusal": "a list of 8 was refused"}, True),
        ({"refusal": "a list of 8 was refused", "kind": "openai"}, False),
        ({"needs_model": True, "models": ("a", "b")}, False),
        ({"tells_load": False, "kind": "openai"}, False),
        ({"proxies": ("via",)}, False),
    ],
)
def test_what_a_servers_owner_would_change_is_told_apart(wanting, status):
    assert report_on(replace(GOOD, **wanting)).concerns_server is status


def test_settings_are_those_of_the_sort_of_server():
    def setting(**given):
        (finding,) = report_on(replace(GOOD, **given)).findings
        return finding.setting

    assert setting(slots=10).startswith("--max-num-seqs 100")
    assert setting(slots=10, kind="sglang").startswith("--max-running-requests 100")
    assert setting(slots=4, kind="llamacpp", longest=256) == "--parallel 64, with the same -c"
    assert setting(tells_load=False, kind="llamacpp", slots=600) == "--metrics"
    assert setting(prefix_caching=False, kind="sglang") == "start without --disable-radix-cache"
    assert setting(max_len=32_768, longest=300).startswith("--max-model-len 1024")


def test_sequences_are_few_where_they_would_bound_the_client():
    """A client has 1,024 in flight at most."""
    (finding,) = report_on(replace(GOOD, slots=256, kv_tokens=10_000_000)).findings
    assert finding.setting == "--max-num-seqs 1024"
    assert ids(report_on(replace(GOOD, slots=513, kv_tokens=10_000_000))) == []


@pytest.mark.parametrize("name", ["few-sequences", "model-length-high"])
def test_lengths_of_few_requests_say_nothing(name):
    report = report_on(replace(GOOD, **CASES[name][0], served=99))
    assert ids(report) == []
    assert len(report.unknown) == 2


def test_the_heaviest_come_first():
    fault = Finding("calls-fail", Weight.BROKEN, "A small call fails.", "the log", "a small call")
    report = report_on(replace(GOOD, max_len=16_000, prefix_caching=False, fault=fault))
    assert ids(report) == ["calls-fail", "prefix-caching-off", "model-length-high"]
    assert [finding.weight for finding in report.findings] == sorted(Weight, reverse=True)
    assert (report.works, report.unknown) == (False, ())


def test_the_line_about_a_server():
    assert report_on(replace(GOOD, proxies=("via", "server: nginx"))).about() == (
        "vllm 0.32.0, model m, a length of 4,096 tokens, 256 sequences at once, 100,000 KV tokens,"
        " behind a proxy (via, server: nginx)"
    )
    chats = report_on(Facts("http://x/v1", "openai", calls="chat")).about()
    assert chats == "a server with OpenAI's API, no completions: each chat is a request of its own"
    assert report_on(Facts("http://x/v1")).about() == "no server known"
