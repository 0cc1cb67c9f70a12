"""The manifests of examples/kubernetes: valid by Kubernetes' own schema, their parts fit together, their commands are ours."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests import command_line

from batchclient.jobs.statuses import Status
from batchclient.simulator import EmbeddedServer

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
SERVER, DOCUMENTS, JOB, WORKER = (FOLDER / f"{name}.yaml" for name in ("vllm", "documents", "job", "worker"))
KEDA = "keda.sh/v1alpha1"
VERSIONS = ["1.30", kubernetes_validate.latest_version()]


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def one(path: Path, kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects(path) if each["kind"] == kind]
    return found


def container(path: Path, kind: str) -> dict[str, Any]:
    (found,) = one(path, kind)["spec"]["template"]["spec"]["containers"]
    return found


def values_of(arguments: list[str], option: str) -> list[str]:
    return [value for name, value in zip(arguments, arguments[1:], strict=False) if name == option]


def value_of(arguments: list[str], option: str) -> str:
    (value,) = values_of(arguments, option)
    return value


def test_there_are_the_manifests_that_the_docs_speak_of() -> None:
    page = (FOLDER.parents[1] / "docs/guide/redis-kubernetes.md").read_text()
    assert sorted(path.name for path in FILES) == sorted(set(re.findall(r"\w+\.yaml", page)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_is_valid_by_the_schema(path: Path, version: str) -> None:
    for each in objects(path):
        # KEDA's objects have a test of their own.
        if each["apiVersion"] != KEDA:
            kubernetes_validate.validate(each, version, strict=True)


def test_the_schema_would_notice_a_misspelt_field() -> None:
    broken = one(SERVER, "StatefulSet")
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_the_servers_have_names_of_their_own_and_their_port() -> None:
    servers, service = one(SERVER, "StatefulSet"), one(SERVER, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert servers["spec"]["serviceName"] == service["metadata"]["name"]
    labels = servers["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert servers["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container(SERVER, "StatefulSet")["ports"]}
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert value_of(container(SERVER, "StatefulSet")["args"], "--port") == str(ports["http"])


def test_a_server_has_its_probes_its_gpu_and_time_to_finish() -> None:
    spec = one(SERVER, "StatefulSet")["spec"]
    pod = spec["template"]["spec"]
    (server,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert server["resources"]["limits"]["nvidia.com/gpu"] == server["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert pod["terminationGracePeriodSeconds"] > 60
    # A service called vllm sets VLLM_PORT, which vLLM takes for its own.
    assert pod["enableServiceLinks"] is False
    volumes = {each["name"] for each in pod["volumes"]} | {
        each["metadata"]["name"] for each in spec["volumeClaimTemplates"]
    }
    assert {mount["name"] for mount in server["volumeMounts"]} == volumes


def test_vllm_has_the_guides_settings() -> None:
    arguments = container(SERVER, "StatefulSet")["args"]
    settings = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    assert settings["--max-num-seqs"] == "256"
    assert settings["--max-num-batched-tokens"] == "8192"
    assert settings["--gpu-memory-utilization"] == "0.9"
    assert "--enable-prefix-caching" in arguments
    grace_s = one(SERVER, "StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert int(settings["--shutdown-timeout"]) < grace_s


def test_a_job_knows_the_exit_statuses() -> None:
    spec = one(JOB, "Job")["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    actions = {status: rule["action"] for rule in rules for status in rule.get("onExitCodes", {}).get("values", [])}
    assert actions == {Status.FAILED: "FailJob", Status.USAGE: "FailJob", Status.NO_SERVER: "Ignore"}
    (disruption,) = [rule for rule in rules if "onPodConditions" in rule]
    assert disruption["action"] == "Ignore"
    assert disruption["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    # A pod that is started again without being counted needs another end.
    assert spec["activeDeadlineSeconds"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["backoffLimit"] > 0


def test_another_pod_goes_on_from_the_files_of_the_one_before() -> None:
    path = JOB
    arguments = container(path, "Job")["args"]
    output = Path(arguments[arguments.index("--output") + 1])
    mounts = {mount["mountPath"]: mount["name"] for mount in container(path, "Job")["volumeMounts"]}
    volumes = {each["name"]: each for each in one(path, "Job")["spec"]["template"]["spec"]["volumes"]}
    # The journal is beside the output: both outlive the pod, on a disk.
    claim = one(DOCUMENTS, "PersistentVolumeClaim")
    assert volumes[mounts[str(output.parent)]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_the_pod_that_copies_files_has_the_jobs_volume_user_and_image() -> None:
    pod, job = one(DOCUMENTS, "Pod")["spec"], one(JOB, "Job")["spec"]["template"]["spec"]
    (copy,), (map_,) = pod["containers"], job["containers"]
    assert pod["securityContext"] == job["securityContext"]
    assert copy["image"] == map_["image"]
    assert all(volume in job["volumes"] for volume in pod["volumes"])
    assert all(mount in map_["volumeMounts"] for mount in copy["volumeMounts"])


@pytest.mark.parametrize(("path", "kind"), [(JOB, "Job"), (WORKER, "Deployment")], ids=["job", "worker"])
def test_each_server_is_named(path: Path, kind: str) -> None:
    service, spec = one(SERVER, "Service"), one(SERVER, "StatefulSet")
    host, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    pods = [f"{spec['metadata']['name']}-{number}" for number in range(spec["spec"]["replicas"])]
    arguments = container(path, kind)["args"]
    assert values_of(arguments, "--base-url") == [f"http://{pod}.{host}:{port}/v1" for pod in pods]
    assert value_of(arguments, "--model") == value_of(container(SERVER, "StatefulSet")["args"], "--model")


def test_the_command_of_a_job_does_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As written there, with local servers and files in place of the cluster's."""
    for variable in ("BASE_URL", "MODEL", "API_KEY"):
        monkeypatch.delenv(f"BATCHCLIENT_{variable}", raising=False)
    arguments = container(JOB, "Job")["args"]
    assert value_of(arguments, "--call") == "chat"
    rows = [json.dumps({"id": str(number), "text": f"text {number}"}) for number in range(40)]
    (tmp_path / "documents.jsonl").write_text("\n".join(rows))
    urls = values_of(arguments, "--base-url")
    with ExitStack() as stack:
        model = value_of(arguments, "--model")
        servers = [stack.enter_context(EmbeddedServer("instant", model=model)) for _ in urls]
        local = dict(zip(urls, (server.base_url for server in servers), strict=True))
        result = command_line.run(*[local.get(each, each).replace("/data", str(tmp_path)) for each in arguments])
        assert result.exit_code == Status.OK, result.output
        assert sum(server.prompts for server in servers) == 40
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert sorted(int(json.loads(line)["id"]) for line in lines) == list(range(40))
    assert all(json.loads(line)["completion"] for line in lines)


# Workers of a Redis stream -------------------------------------------------------------------------------------------


def test_a_worker_has_time_to_finish_and_a_port_for_its_metrics() -> None:
    path, kind = WORKER, "Deployment"
    template = one(path, kind)["spec"]["template"]
    arguments = container(path, kind)["args"]
    assert arguments[0] == "work"
    assert template["spec"]["terminationGracePeriodSeconds"] > float(value_of(arguments, "--grace"))
    (port,) = container(path, kind)["ports"]
    assert value_of(arguments, "--metrics-port") == f"0.0.0.0:{port['containerPort']}"
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert one(path, kind)["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_workers_whose_number_changes_share_each_server() -> None:
    path = WORKER
    arguments = container(path, "Deployment")["args"]
    assert "--endpoints-shard" not in arguments
    together = int(value_of(arguments, "--concurrency")) * one(path, "ScaledObject")["spec"]["maxReplicaCount"]
    served = container(SERVER, "StatefulSet")["args"]
    assert together <= int(value_of(served, "--max-num-seqs"))
    # Their number is one field's alone.
    assert "replicas" not in one(path, "Deployment")["spec"]


def keda_faults(scaled: dict[str, Any]) -> list[str]:
    """What KEDA's API would not know, or not read (keda.sh/docs: ScaledObject, Redis Streams)."""
    spec = scaled["spec"]
    faults = sorted(set(spec) - SCALED_OBJECT) + sorted(set(spec["scaleTargetRef"]) - SCALE_TARGET)
    for trigger in spec["triggers"]:
        faults += sorted(set(trigger) - TRIGGER)
        if trigger["type"] == "redis-streams":
            faults += sorted(set(trigger["metadata"]) - REDIS_STREAMS)
            faults += [f"no {name}" for name in ("address", "stream") if name not in trigger["metadata"]]
            if "lagCount" in trigger["metadata"] and "activationLagCount" not in trigger["metadata"]:
                faults.append("no activationLagCount")
        # A map of strings: a number would be refused by the server.
        faults += [f"{name}: no string" for name, value in trigger["metadata"].items() if not isinstance(value, str)]
    numbers = ("pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount")
    return faults + [f"{name}: no number" for name in numbers if not isinstance(spec.get(name, 0), int)]


SCALED_OBJECT = frozenset(
    "scaleTargetRef pollingInterval cooldownPeriod initialCooldownPeriod idleReplicaCount minReplicaCount"
    " maxReplicaCount fallback advanced triggers".split()
)
SCALE_TARGET = frozenset("apiVersion kind name envSourceContainerName".split())
TRIGGER = frozenset("type metadata name useCachedMetrics authenticationRef metricType".split())
REDIS_STREAMS = frozenset(
    "address host port usernameFromEnv passwordFromEnv stream consumerGroup pendingEntriesCount streamLength lagCount"
    " activationLagCount enableTLS unsafeSsl databaseIndex addressFromEnv hostFromEnv portFromEnv".split()
)


def test_keda_knows_every_field() -> None:
    scaled = one(WORKER, "ScaledObject")
    assert scaled["apiVersion"] == KEDA
    assert keda_faults(scaled) == []
    scaled["spec"]["coolDownPeriod"] = 300
    scaled["spec"]["triggers"][0]["metadata"]["lagcount"] = 5
    del scaled["spec"]["triggers"][0]["metadata"]["activationLagCount"]
    assert keda_faults(scaled) == ["coolDownPeriod", "lagcount", "no activationLagCount", "lagcount: no string"]


def test_keda_counts_the_messages_that_wait_and_those_in_work() -> None:
    path = WORKER
    spec = one(path, "ScaledObject")["spec"]
    assert spec["scaleTargetRef"]["name"] == one(path, "Deployment")["metadata"]["name"]
    assert (spec["minReplicaCount"], spec["cooldownPeriod"]) == (0, 300)
    waiting, in_work = (trigger["metadata"] for trigger in spec["triggers"])
    arguments = container(path, "Deployment")["args"]
    address = value_of(arguments, "--redis").removeprefix("redis://").partition("/")[0]
    for metadata in (waiting, in_work):
        assert (metadata["address"], metadata["stream"]) == (address, value_of(arguments, "--stream"))
        assert metadata["consumerGroup"] == "batchclient"
    assert (waiting["lagCount"], waiting["activationLagCount"]) == ("512", "0")
    # With lagCount KEDA would look at the lag alone.
    assert "lagCount" not in in_work
    # A worker holds twice the limits of all servers: the messages in work begin no worker.
    held = 2 * int(value_of(arguments, "--concurrency")) * len(values_of(arguments, "--base-url"))
    assert int(in_work["pendingEntriesCount"]) >= held
