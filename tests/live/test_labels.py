"""Labels on a real vLLM, against what transformers computes of the same weights."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from tests.live.fixtures import LiveServer, booted
from tests.live.server_process import DEFAULT_MODEL_DIR, ROOT

pytestmark = pytest.mark.vllm

ROWS = 500
LABELS = ["return", "False", "import os", "yes, sir"]
SHARED = ["not good", "not bad", "fair"]
CONTINUED = ["not good", "not good at all", "fair"]
PROMPTS = [f"def f{n}(x{n * 7 % 13}):\n    # is it number {n * n}? Answer:" for n in range(ROWS)]
REFERENCE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)
asked = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(asked["model"])
model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32).eval()
texts = [tokenizer.decode([each]) for each in range(len(tokenizer))]


@torch.no_grad()
def logprobs(ids):
    return model(torch.tensor([ids])).logits[0].log_softmax(-1)


def greedy(ids, wanted):
    said = ""
    while said not in wanted:
        numbers = logprobs(ids)[-1]
        may = [n for n, text in enumerate(texts) if text and any(each.startswith(said + text) for each in wanted)]
        best = max(may, key=lambda n: numbers[n].item())
        said, ids = said + texts[best], [*ids, best]
    return said


def ids_of(prompt):
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


told = []
for prompt in asked["prompts"]:
    ids = ids_of(prompt)
    if asked["what"] == "greedy":
        told.append(greedy(ids, [start + each for each in asked["labels"] for start in ("", " ")]))
        continue
    rest = [tokenizer(asked["blank"] + each, add_special_tokens=False)["input_ids"] for each in asked["labels"]]
    if asked["what"] == "first":
        told.append([logprobs(ids)[-1][each[0]].exp().item() for each in rest])
        continue
    sums = []
    for each in rest:
        numbers = logprobs([*ids, *each])
        sums.append(sum(numbers[len(ids) - 1 + n][token].item() for n, token in enumerate(each)))
    told.append(torch.tensor(sums).softmax(-1).tolist())
print(json.dumps(told))
"""


def computed(what: str, prompts: list[Any], labels: list[str], blank: str = " ") -> list[Any]:
    """What transformers says: the greedy label, the first tokens' probabilities, or the share of each continuation."""
    python = (ROOT / os.environ.get("BATCHCLIENT_VLLM_VENV", ".vllm")) / "bin/python"
    asked = {"model": str(DEFAULT_MODEL_DIR), "what": what, "prompts": prompts, "labels": labels, "blank": blank}
    done = subprocess.run(
        [python, "-c", REFERENCE], input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    told: list[Any] = json.loads(done.stdout)
    return told


async def test_a_label_is_the_greedy_answer_among_the_labels(vllm_server: LiveServer) -> None:
    async with vllm_server.client() as client:
        answers = await client.batch_map(PROMPTS, "{}", labels=LABELS, temperature=0)
        batches = client.statistics().batches
    expected = computed("greedy", PROMPTS, LABELS)
    same = sum(answer.text == each for answer, each in zip(answers, expected, strict=True))
    print(f"{same} of {ROWS} labels are the greedy answer; {batches} requests")
    assert same >= 0.99 * ROWS and batches < ROWS / 4
    assert {answer.health for answer in answers} == {"ok"} and len({answer.label for answer in answers}) > 1


async def test_probabilities_are_those_of_the_first_tokens(vllm_server: LiveServer) -> None:
    async with vllm_server.client() as client:
        answers = await client.batch_map(PROMPTS, "{}", labels=LABELS, probabilities=True)
        assert client.statistics().batches < ROWS / 4
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[:50]]
        spoken = await client.batch_map(chats, lambda chat: chat, call="chat", labels=LABELS, probabilities=True)
    worst = 0.0
    for found, asked in ((answers, PROMPTS), (spoken, chats)):
        for answer, numbers in zip(found, computed("first", asked, LABELS), strict=True):
            told = [answer.probabilities[label] for label in LABELS]
            # The tiny model has hardly a preference: a hundredth would be as much as all of them.
            worst = max(worst, *(abs(mine / its - 1) for mine, its in zip(told, numbers, strict=True)))
            assert told == pytest.approx(numbers, abs=0.01)
            assert answer.probabilities["other"] == pytest.approx(1 - sum(numbers), abs=0.01)
            assert answer.label == LABELS[told.index(max(told))]
    print(f"probabilities differ by {worst:.2%} of themselves at most")
    assert worst < 0.02


async def test_labels_that_share_their_first_token_are_scored(vllm_server: LiveServer) -> None:
    async with vllm_server.client() as client:
        answers = await client.batch_map(PROMPTS[:100], "{}", labels=SHARED, probabilities=True)
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[:20]]
        spoken = await client.batch_map(chats, lambda chat: chat, call="chat", labels=SHARED, probabilities=True)
    worst = 0.0
    for found, asked in ((answers, PROMPTS[:100]), (spoken, chats)):
        for answer, numbers in zip(found, computed("scored", asked, SHARED), strict=True):
            assert answer.probabilities["other"] is None
            worst = max(worst, *(abs(answer.probabilities[SHARED[n]] - each) for n, each in enumerate(numbers)))
    print(f"scores differ by {worst:.4f} at most")
    assert worst < 0.02


async def test_labels_that_continue_one_another_are_scored_with_their_end() -> None:
    user, end = "user: {}</s>\nassistant:", "</s>"
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}</s>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[:20]]
    with booted(("--chat-template", template)) as server:
        async with server.client() as client:
            answers = await client.batch_map(PROMPTS[:100], "{}", labels=CONTINUED, probabilities=True)
            spoken = await client.batch_map(chats, lambda chat: chat, call="chat", labels=CONTINUED, probabilities=True)
    worst = 0.0
    for found, prompts, after in (
        (answers, PROMPTS[:100], "\n"),
        (spoken, [user.format(prompt) for prompt in PROMPTS[:20]], end),
    ):
        expected = computed("scored", prompts, [label + after for label in CONTINUED])
        for answer, numbers in zip(found, expected, strict=True):
            # Of each, as above: the shorter one has nearly all.
            worst = max(worst, *(abs(answer.probabilities[CONTINUED[n]] / each - 1) for n, each in enumerate(numbers)))
    print(f"scores with ends differ by {worst:.4f} at most")
    assert worst < 0.05


async def test_a_chat_has_one_of_its_labels(vllm_server: LiveServer) -> None:
    async with vllm_server.client() as client:
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[:64]]
        answers = await client.batch_map(chats, lambda chat: chat, call="chat", labels=LABELS)
        assert client.statistics().batches < 32
    assert {answer.label for answer in answers} <= {*LABELS} and {answer.health for answer in answers} == {"ok"}
