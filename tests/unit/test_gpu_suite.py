"""The harness of tests/gpu without a GPU: what it finds, starts, measures and reports; and the suite itself, against the embedded server."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchclient import Choice, Completion, Usage
from batchclient.simulator.app import EmbeddedServer
from tests.gpu import loads, machine, utilisation
from tests.gpu.machine import Found, ask, find, gauge, get, rooted
from tests.gpu.report import Report, folder
from tests.gpu.servers import LocalTransformers, LocalVllm, model_size
from tests.gpu.targets import Target, attached

ROOT = Path(__file__).parents[2]
NOTHING = {"BATCHCLIENT_VLLM_VENV": "/nonexistent"}


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with EmbeddedServer(profile="instant", model="m", max_model_len_tokens=2048) as server:
        yield attached("vllm", server.base_url)


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# Finding


def test_without_a_server_or_a_gpu_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    found = find(NOTHING, tmp_path)
    assert found.kinds == []
    assert "no NVIDIA GPU" in found.missing
    assert all(name in found.missing for name in machine.URLS)


def test_finding_nothing_imports_no_gpu_library() -> None:
    code = (
        "import sys, tests.gpu.machine as m; m.find({}); print(sorted({'torch', 'vllm', 'pynvml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_servers_are_found_in_the_environment(tmp_path: Path) -> None:
    found = find(NOTHING | {"BATCHCLIENT_TGI_URL": "http://a", "BATCHCLIENT_VLLM_URL": "http://b"}, tmp_path)
    assert found.urls == {"vllm": "http://b", "tgi": "http://a"}
    assert found.kinds == ["vllm", "tgi"]
    assert not found.missing


def test_a_gpu_without_anything_to_serve_on_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    assert "neither vLLM nor transformers" in find(NOTHING, tmp_path).missing


def test_a_gpu_and_a_vllm_are_enough(tmp_path: Path) -> None:
    (tmp_path / "nvidia3").touch()
    (tmp_path / "nvidiactl").touch()
    found = find(NOTHING | {"BATCHCLIENT_VLLM_PYTHON": "python-with-vllm"}, tmp_path)
    assert (found.local, found.python, found.device, found.kinds) == ("vllm", "python-with-vllm", "cuda", ["vllm"])


def test_the_driver_alone_is_no_card(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert find(NOTHING | {"BATCHCLIENT_VLLM_PYTHON": "p"}, tmp_path).missing


def test_a_rehearsal_needs_no_gpu(tmp_path: Path) -> None:
    found = find(NOTHING | {"BATCHCLIENT_VLLM_PYTHON": "p", "BATCHCLIENT_GPU_DEVICE": "cpu"}, tmp_path)
    assert (found.local, found.device) == ("vllm", "cpu")
    assert model_size(found) == "tiny"


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_urls_may_be_written_with_or_without_v1(url: str) -> None:
    assert rooted(url) == "http://h:1/v1"


def test_a_server_that_someone_named_and_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError):
        attached("vllm", "http://127.0.0.1:9")


def test_a_server_is_asked_for_its_model_and_length(target: Target) -> None:
    assert (target.model, target.max_model_len) == ("m", 2048)
    assert ask(target.base_url).model == "m"


def test_gauges_are_read_from_its_page(target: Target) -> None:
    assert target.gauge("vllm:num_requests_running") == 0
    page = get(f"{target.root}/metrics").decode()
    with pytest.raises(LookupError, match="no_such"):
        gauge(page, "no_such")
    assert gauge('a{x="1"} 2\na{x="2"} 3\nab 7\n', "a") == 5


# Starting


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHCLIENT_GPU_MODEL_DIR", str(tmp_path / "some-model"))
    return tmp_path / "some-model"


def test_vllm_on_a_gpu_leaves_room_for_the_engine_and_takes_the_machines_flags(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHCLIENT_GPU_FLAGS", "--attention-backend 'FLASH ATTN'")
    command = LocalVllm(Found(local="vllm", python="py"), ("--own",), kv_tokens=3072)._command()
    assert command[:5] == ["py", "-m", "vllm.entrypoints.cli.main", "serve", "some-model"]
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.4"
    assert command[command.index("--num-gpu-blocks-override") + 1] == "96"
    assert command[-3:] == ["--attention-backend", "FLASH ATTN", "--own"]
    assert "--enforce-eager" not in command


def test_transformers_serves_where_there_is_no_vllm(model: Path) -> None:
    command = LocalTransformers(Found(local="transformers", python="py"))._command()
    assert command[command.index("--device") + 1] == "cuda:0"
    assert "--continuous-batching" in command


# Measuring


def test_every_way_of_working_does_all_the_work(target: Target) -> None:
    async def story() -> list[loads.Run]:
        texts = loads.prompts(30)
        return [
            await loads.by_us(target, texts, 8),
            await loads.by_openai(target, texts, 8, 16),
            await loads.one_by_one(target, texts, 8),
        ]

    for done in asyncio.run(story()):
        assert (done.prompts, done.tokens) == (30, 240)
        assert done.seconds > 0
        assert done.tokens_per_s == pytest.approx(8 * done.prompts_per_s)


def test_an_answer_that_lacks_tokens_fails_a_measurement() -> None:
    with pytest.raises(AssertionError, match="3 tokens instead of 8"):
        loads.whole(Completion((Choice(0, ""),), Usage(1, 3)), 8)


def test_prompts_do_not_repeat() -> None:
    assert len(set(loads.prompts(1000))) == 1000


def test_a_run_is_as_long_as_was_asked(target: Target) -> None:
    count = asyncio.run(loads.count_for(target, 1, seconds=0.2))
    assert loads.LEAST <= count <= loads.MOST
    assert asyncio.run(loads.count_for(target, 1, seconds=0.0)) == loads.LEAST


ENGINE = """#!{python}
import json, sys
job = json.load(sys.stdin)
print("noise")
cases = [dict(max_tokens=m, prompts=len(p), tokens=m * len(p), seconds=2.0) for m, p in job["cases"]]
print("RESULT " + json.dumps(cases))
"""


def test_the_engines_own_runs_come_back_by_length(model: Path, tmp_path: Path) -> None:
    engine = executable(tmp_path / "engine", ENGINE.format(python=sys.executable))
    runs = loads.by_engine(Found(local="vllm", python=str(engine)), {1: 10, 32: 5})
    assert (runs[1].prompts_per_s, runs[32].tokens_per_s) == (5.0, 80.0)


def test_an_engine_that_fails_tells_the_end_of_its_log(model: Path, tmp_path: Path) -> None:
    engine = executable(tmp_path / "engine", "#!/bin/sh\ncat >/dev/null\necho 'no kernel image' >&2\nexit 1\n")
    with pytest.raises(RuntimeError, match="no kernel image"):
        loads.by_engine(Found(local="vllm", python=str(engine)), {1: 10})


def test_utilisation_is_the_mean_of_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "nvidia-smi", "#!/bin/sh\necho 40\necho 80\necho '[N/A]'\nexec sleep 60\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(utilisation.importlib.util, "find_spec", lambda name: None)
    assert not utilisation.unavailable()
    with utilisation.Utilisation() as busy:
        while len(busy._samples) < 2:
            pass
    assert busy.mean() == 60


def test_without_nvml_there_is_a_reason_and_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(utilisation.importlib.util, "find_spec", lambda name: None)
    assert "pynvml" in utilisation.unavailable()
    with pytest.raises(LookupError):
        utilisation.Utilisation().mean()


# Reporting


def test_a_report_says_what_was_measured_on_what(tmp_path: Path) -> None:
    facts = {
        "machine": "M",
        "python": "3.12",
        "cards": [{"name": "H200", "driver_version": "570"}],
        "versions": {"vllm": "0.32"},
    }
    report = Report(facts, "python -m pytest tests/gpu")
    report.server(kind="vllm", model="m")
    report.server(kind="vllm", model="m")
    report.figure("throughput", "this client / LLM.generate", 0.87654321, "×", max_tokens=32)
    report.test("test_a.py::test_b", "failed", 1.234, "a | b\nc")
    written = report.write(tmp_path / "new")
    data = json.loads((written / "report.json").read_text())
    assert data["servers"] == [{"kind": "vllm", "model": "m"}]
    assert data["figures"][0]["value"] == 0.8765
    assert data["command"] == "python -m pytest tests/gpu"
    text = (written / "report.md").read_text()
    for part in (
        "H200, 570",
        "vllm 0.32",
        "| this client / LLM.generate | 0.8765 | × | max_tokens 32 |",
        "1 failed",
        "a \\| b c",
    ):
        assert part in text


def test_a_report_goes_where_one_says() -> None:
    assert folder({"BATCHCLIENT_REPORT": "/r"}) == Path("/r")
    assert folder({}) == ROOT / ".cache" / "gpu-report"


def test_the_facts_of_a_machine_without_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = machine.facts()
    assert facts["cards"] == []
    assert "httpx" in facts["versions"]


def test_the_facts_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 570.1, 143771 MiB'\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert machine.cards() == [{"name": "NVIDIA H200", "driver_version": "570.1", "memory.total": "143771 MiB"}]


# The suite itself


def suite(tmp_path: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("BATCHCLIENT_")}
    own |= NOTHING | {"BATCHCLIENT_REPORT": str(tmp_path / "report"), "BATCHCLIENT_GPU_RUN_S": "0.1"} | environ
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", "-m", "gpu", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=own, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
def test_without_a_gpu_all_of_it_is_skipped_and_no_report_is_written(tmp_path: Path) -> None:
    status, said = suite(tmp_path)
    assert status == 0, said
    summary = said.strip().splitlines()[-1]
    assert "skipped" in summary and "passed" not in summary and "failed" not in summary
    assert int(summary.split()[0]) >= 25
    reasons = {line.split(": ", 1)[1] for line in said.splitlines() if line.startswith("SKIPPED")}
    assert len(reasons) == 1, reasons
    assert not (tmp_path / "report").exists()


@pytest.mark.long
def test_against_a_named_server_it_runs_and_reports(target: Target, tmp_path: Path) -> None:
    # What an instant server has no time for is left out.
    chosen = "every_caller_gets_its_own or keeps_its_order or utilisation or (openai and not 32 and not 256)"
    status, said = suite(tmp_path, "-k", chosen, BATCHCLIENT_VLLM_URL=target.root)
    data = json.loads((tmp_path / "report" / "report.json").read_text())
    outcomes = {test["name"]: test["outcome"] for test in data["tests"]}
    assert outcomes["test_every_server.py::test_every_caller_gets_its_own_answer[vllm-16]"] == "passed", said
    assert {figure["what"] for figure in data["figures"]} >= {"this client / AsyncOpenAI at its best"}
    assert data["servers"][0]["started"] == "by someone else"
    (skipped,) = [test for test in data["tests"] if test["outcome"] == "skipped"]
    assert "nvidia-smi" in skipped["reason"] or "NVML" in skipped["reason"]
    assert status == 0, said
