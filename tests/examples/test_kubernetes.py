"""The manifests of examples/kubernetes: valid by Kubernetes' own schema, their parts fit together, their commands are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from batchclient.cli.app import make_app
from batchclient.jobs.statuses import Status

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
SERVERS = ["vllm", "tgi"]
JOBS = ["job", "shards"]
VERSIONS = ["1.30", kubernetes_validate.latest_version()]


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def one(path: Path, kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects(path) if each["kind"] == kind]
    return found


def container(path: Path, kind: str) -> dict[str, Any]:
    (found,) = one(path, kind)["spec"]["template"]["spec"]["containers"]
    return found


def test_there_are_the_manifests_that_the_docs_speak_of() -> None:
    assert [path.name for path in FILES] == ["job.yaml", "shards.yaml", "tgi.yaml", "vllm.yaml"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_is_valid_by_the_schema(path: Path, version: str) -> None:
    for each in objects(path):
        kubernetes_validate.validate(each, version, strict=True)


def test_the_schema_would_notice_a_misspelt_field() -> None:
    broken = one(FOLDER / "vllm.yaml", "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", SERVERS)
def test_a_service_finds_its_pods_and_their_port(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    deployment, service = one(path, "Deployment"), one(path, "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container(path, "Deployment")["ports"]}
    assert service["spec"]["ports"][0]["targetPort"] in ports
    arguments = container(path, "Deployment")["args"]
    assert arguments[arguments.index("--port") + 1] == str(ports["http"])


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_its_probes_its_gpu_and_time_to_finish(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    pod = one(path, "Deployment")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert server["resources"]["limits"]["nvidia.com/gpu"] == server["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert pod["terminationGracePeriodSeconds"] > 60
    # A service called vllm sets VLLM_PORT, which vLLM takes for its own.
    assert pod["enableServiceLinks"] is False
    claims = {each["metadata"]["name"] for each in objects(path) if each["kind"] == "PersistentVolumeClaim"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in server["volumeMounts"]} == set(volumes)
    assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} == claims


def test_vllm_has_the_guides_settings() -> None:
    arguments = container(FOLDER / "vllm.yaml", "Deployment")["args"]
    settings = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    assert settings["--max-num-seqs"] == "256"
    assert settings["--max-num-batched-tokens"] == "8192"
    assert settings["--gpu-memory-utilization"] == "0.9"
    assert "--enable-prefix-caching" in arguments
    grace_s = one(FOLDER / "vllm.yaml", "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert int(settings["--shutdown-timeout"]) < grace_s


def test_tgi_has_the_guides_settings() -> None:
    variables = {each["name"]: each.get("value") for each in container(FOLDER / "tgi.yaml", "Deployment")["env"]}
    assert variables["MAX_CONCURRENT_REQUESTS"] == "128"
    assert variables["MAX_BATCH_SIZE"] == "32"
    assert variables["MAX_BATCH_PREFILL_TOKENS"] == "4096"
    assert variables["MAX_TOTAL_TOKENS"] == "8192"
    assert variables["WAITING_SERVED_RATIO"] == "1.2"


@pytest.mark.parametrize(
    ("name", "failed"), [("job", {Status.FAILED: "FailJob"}), ("shards", {Status.FAILED: "FailIndex"})], ids=JOBS
)
def test_a_job_knows_the_exit_statuses(name: str, failed: dict[int, str]) -> None:
    spec = one(FOLDER / f"{name}.yaml", "Job")["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    actions = {status: rule["action"] for rule in rules for status in rule.get("onExitCodes", {}).get("values", [])}
    assert actions == failed | {Status.USAGE: "FailJob", Status.NO_SERVER: "Ignore"}
    (disruption,) = [rule for rule in rules if "onPodConditions" in rule]
    assert disruption["action"] == "Ignore"
    assert disruption["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    # A pod that is started again without being counted needs another end.
    assert spec["activeDeadlineSeconds"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["backoffLimitPerIndex" if name == "shards" else "backoffLimit"] > 0


@pytest.mark.parametrize("name", JOBS)
def test_another_pod_goes_on_from_the_files_of_the_one_before(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    arguments = container(path, "Job")["args"]
    assert "--resume" in arguments
    output = Path(arguments[arguments.index("--output") + 1])
    mounts = {mount["mountPath"]: mount["name"] for mount in container(path, "Job")["volumeMounts"]}
    volumes = {each["name"]: each for each in one(path, "Job")["spec"]["template"]["spec"]["volumes"]}
    # The journal is beside the output: both outlive the pod, on a disk.
    claim = one(FOLDER / "job.yaml", "PersistentVolumeClaim")
    assert volumes[mounts[str(output.parent)]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_the_parts_are_those_of_the_indices() -> None:
    spec = one(FOLDER / "shards.yaml", "Job")["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    arguments = container(FOLDER / "shards.yaml", "Job")["args"]
    assert arguments[arguments.index("--shard") + 1] == f"$(JOB_COMPLETION_INDEX)/{spec['completions']}"
    served = container(FOLDER / "vllm.yaml", "Deployment")["args"]
    together = int(arguments[arguments.index("--concurrency") + 1]) * spec["parallelism"]
    assert together <= int(served[served.index("--max-num-seqs") + 1])
    pod = spec["template"]
    (rule,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_calls_the_service_with_options_that_the_client_has(name: str) -> None:
    # Kubernetes puts the index there.
    arguments = [
        each.replace("$(JOB_COMPLETION_INDEX)", "0") for each in container(FOLDER / f"{name}.yaml", "Job")["args"]
    ]
    service = one(FOLDER / "vllm.yaml", "Service")
    url = arguments[arguments.index("--base-url") + 1]
    assert url == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/v1"
    served = container(FOLDER / "vllm.yaml", "Deployment")["args"]
    assert arguments[arguments.index("--model") + 1] == served[served.index("--model") + 1]
    # Wrong options end with 2, and so does a file that is not there: the message tells which it was.
    result = CliRunner().invoke(make_app(), arguments)
    assert result.exit_code == 2
    assert "No such option" not in result.output
    assert "documents.jsonl" in result.output
