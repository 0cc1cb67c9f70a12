"""The table of checks: facts in, findings out."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from batchclient._doctor.checks import CHECKS
from batchclient._doctor.diagnosis import diagnose
from batchclient._doctor.facts import Facts, Fault, Lists, Queue, Weight
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
    tls_inside=False,
    streams=True,
    events=2,
    tokens=24,
    lists=Lists.TAKEN,
    list_size=8,
    serial=0,
    held_back=False,
    core_share=1.0,
)
CASES = {
    "url-without-v1": ({"lacks_v1": True}, {"lacks_v1": False}),
    "own-route-missing": ({"lacks_own_route": True, "kind": "sglang"}, {"kind": "sglang"}),
    "several-models": ({"model": None, "models": ("a", "b")}, {"model": "a", "models": ("a", "b")}),
    "crowded": ({"is_crowded": True, "others": 300}, {"others": 300}),
    "no-completions": ({"without_completions": "chat"}, {"without_completions": "embedding"}),
    "lists-refused": ({"lists": Lists.REFUSED}, {"lists": Lists.PLAIN, "streams": False}),
    "lists-over-bound": ({"lists": Lists.OVER_BOUND}, {"lists": Lists.TAKEN}),
    "lists-serial": ({"serial": 2}, {"serial": 1}),
    "lists-not-streamed": ({"lists": Lists.PLAIN}, {"lists": Lists.PLAIN, "streams": False}),
    "lists-short": ({"list_cap": 4}, {"list_cap": 32}),
    "event-per-token": ({"events": 24}, {"events": 12}),
    "streams-held-back": ({"held_back": True}, {"held_back": None}),
    "prefix-caching-off": ({"prefix_caching": False}, {"prefix_caching": None}),
    "few-sequences": ({"slots": 50}, {"slots": 51}),
    "sequences-wait": ({"queue": Queue(8, 32, 0.1)}, {"queue": Queue(8, 32, 0.5)}),
    "memory-share-low": ({"kv_share": 0.5, "preempted": 50}, {"kv_share": 0.5, "preempted": 49}),
    "model-length-high": ({"max_len": 16_000}, {"max_len": 15_999}),
    "no-metrics": ({"tells_load": False}, {"tells_load": None}),
    "proxy": ({"proxies": ("via",)}, {"proxies": ()}),
    "tls": ({"tls_inside": True}, {"tls_inside": False}),
    "client-bound": ({"core_share": 0.59}, {"core_share": 0.6}),
}
"""By check: facts that are found wanting, and their neighbours that are not."""


def test_a_good_server_has_no_finding_and_no_open_question():
    diagnosis = diagnose(GOOD)
    assert (diagnosis.findings, diagnosis.unknown, diagnosis.works) == ((), (), True)


def test_each_check_has_a_case_and_a_row_of_the_reference():
    assert [check.id for check in CHECKS] == list(CASES)
    page = (Path(__file__).parents[2] / "docs/reference/doctor.md").read_text()
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \|", page.partition("## Findings")[2].partition("## `--json`")[0], re.MULTILINE
    )
    assert sorted(rows) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_check_finds_its_fault_and_nothing_beside(name):
    wanting, neighbour = CASES[name]
    assert ids(diagnose(replace(GOOD, **wanting))) == [name]
    assert ids(diagnose(replace(GOOD, **neighbour))) == []


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_finding_has_a_sentence_a_setting_and_what_it_was_seen_from(kind):
    for wanting, _ in CASES.values():
        for finding in diagnose(replace(GOOD, **{**wanting, "kind": kind})).findings:
            assert finding.sentence.endswith(".")
            assert len(finding.sentence.split()) <= 26
            assert finding.setting
            assert finding.seen
            assert "None" not in f"{finding.sentence} {finding.setting} {finding.seen}"


@pytest.mark.parametrize("check", [check for check in CHECKS if check.needs], ids=lambda check: check.id)
def test_without_its_facts_a_check_finds_nothing(check):
    for need in check.needs:
        # The derived facts are missing where there were few requests.
        need = {"held": "served", "longest_of_many": "served"}.get(need, need)
        facts = replace(GOOD, **{**CASES[check.id][0], need: None})
        diagnosis = diagnose(facts)
        assert check.id not in ids(diagnosis)
        assert not check.unknown or check.unknown in diagnosis.unknown


def test_settings_are_those_of_the_sort_of_server():
    def setting(**given):
        (finding,) = diagnose(replace(GOOD, **given)).findings
        return finding.setting

    assert setting(slots=10).startswith("--max-num-seqs 100")
    assert setting(slots=10, kind="sglang").startswith("--max-running-requests 100")
    assert setting(slots=4, kind="llamacpp", longest=256) == "--parallel 64, with the same -c"
    assert setting(tells_load=False, kind="llamacpp") == "--metrics"
    assert setting(prefix_caching=False, kind="sglang") == "start without --disable-radix-cache"
    assert setting(max_len=32_768, longest=300).startswith("--max-model-len 1024")


def test_the_most_sequences_advised_is_where_arithmetic_bounds():
    (finding,) = diagnose(replace(GOOD, slots=64, kv_tokens=10_000_000)).findings
    assert finding.setting == "--max-num-seqs 256"
    assert ids(diagnose(replace(GOOD, slots=129, kv_tokens=10_000_000))) == []


@pytest.mark.parametrize("name", ["few-sequences", "model-length-high"])
def test_lengths_of_few_requests_say_nothing(name):
    diagnosis = diagnose(replace(GOOD, **CASES[name][0], served=99))
    assert ids(diagnosis) == []
    assert len(diagnosis.unknown) == 2


def test_short_answers_say_nothing_of_events():
    assert ids(diagnose(replace(GOOD, events=15, tokens=15))) == []


def test_the_heaviest_come_first():
    fault = Fault("calls-fail", "A small call fails.", "the log", "a small call")
    diagnosis = diagnose(replace(GOOD, proxies=("via",), core_share=0.1, fault=fault))
    assert ids(diagnosis) == ["calls-fail", "client-bound", "proxy"]
    assert [finding.weight for finding in diagnosis.findings] == sorted(Weight, reverse=True)
    assert not diagnosis.works
    assert diagnosis.unknown == ()


def test_an_event_per_token_without_a_setting_is_no_finding():
    diagnosis = diagnose(replace(GOOD, kind="llamacpp", events=24))
    assert ids(diagnosis) == []
    assert "an event per token" in diagnosis.about()
    assert "an event per token" not in diagnose(GOOD).about()


def test_the_line_about_a_server():
    assert diagnose(GOOD).about() == (
        "vllm 0.32.0, model m, a length of 4,096 tokens, 256 sequences at once, 100,000 KV tokens"
    )
    assert diagnose(Facts("http://x/v1", "openai")).about() == "a server with OpenAI's API"
    assert diagnose(Facts("http://x/v1", "trtllm")).about() == "trtllm"
    assert diagnose(Facts("http://x/v1")).about() == "no server known"
