"""The manifests of examples/kubernetes: valid, what docs/kubernetes.md says of them, and run as processes."""

import copy
import itertools
import re
import subprocess
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api import models  # type: ignore[import-untyped]
from kubernetes_validate import ValidationError, validate  # type: ignore[import-untyped]
from rdzv_cli.agent import AgentOptions, ExitStatus
from rdzv_cli.launch import Launch
from rdzv_conformance.servers import EtcdServer, require_service

from .agents import BUSY, Agent
from .pods import RESOURCES, ROOT, Pod, policy_action, resource

OLDEST = "1.31"
"""The first Kubernetes whose Jobs have a podFailurePolicy without a gate."""
NEWEST = "1.37"

JOB = resource("Job", "train")["spec"]
(REPLICATED,) = resource("JobSet", "train-set")["spec"]["replicatedJobs"]
JOBS = {"Job": JOB, "JobSet": REPLICATED["template"]["spec"]}
PATIENCE = 4 * BUSY
SOON = "last_call_timeout=0.1,keep_alive_interval=0.5,keep_alive_max_attempt=4"
UID = "0f3c1f0e-6a0e-4d5e-9d0c-1c2f4e5a6b7c"


def check(found: Any, version: str) -> None:
    """Refuse what Kubernetes of this version would, and each field that it does not know."""
    if found["kind"] == "JobSet":
        assert models.JobsetV1alpha2JobSet.from_dict(found).to_dict() == found, "a field is not known to JobSet"
        for job in found["spec"]["replicatedJobs"]:
            check(
                {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}, version
            )
    else:
        validate(found, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("found", RESOURCES, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_each_resource_is_valid(found: Any, version: str) -> None:
    check(found, version)


@pytest.mark.parametrize(
    "found", [resource("Job", "train"), resource("JobSet", "train-set")], ids=lambda one: str(one["kind"])
)
def test_what_is_misspelled_is_not_valid(found: Any) -> None:
    found = copy.deepcopy(found)
    found["spec"]["paralelism"] = 4
    with pytest.raises((AssertionError, ValidationError), match=r"paralelism|not known"):
        check(found, NEWEST)


def test_the_page_says_what_becomes_of_each_exit_code() -> None:
    words = {
        "Job": {
            "the index is done": "succeeded",
            "the Job fails": "FailJob",
            "another pod": "Ignore",
            "another pod, counted": "Count",
        },
        "JobSet": {"the index is done": "succeeded", "the JobSet fails": "FailJob", "the next attempt": "Count"},
    }
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    rows = re.findall(r"^\| ([\d, N+]+) \| .+ \| (.+) \| (.+) \|$", text, re.MULTILINE)
    for column, (kind, job) in enumerate(JOBS.items(), start=1):
        said = {code: words[kind][row[column]] for row in rows for code in row[0].split(", ")}
        assert said == {name: policy_action(job, code) for name, code in codes_of(job).items()}
    (rule,) = resource("JobSet", "train-set")["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert JOBS["JobSet"]["backoffLimit"] == 0
    for code in codes_of(JOB).values():
        assert policy_action(JOB, code, is_disrupted=True) == ("Ignore" if code else "succeeded")


def codes_of(job: Mapping[str, Any]) -> dict[str, int]:
    """The exit code that the Job sees of each that `rdzv run` has."""
    codes = {str(status.value): status.value for status in ExitStatus}
    del codes[str(ExitStatus.UNKNOWN.value)], codes[str(ExitStatus.SIGNALLED.value)]
    (allowed,) = (word for word in container_of(job)["command"] if word.startswith("--ok-exit-code="))
    return {**codes, **dict.fromkeys(allowed.partition("=")[2].split(","), 0), "128+N": 137}


def container_of(job: Mapping[str, Any]) -> Any:
    """The only container of its pods."""
    (container,) = job["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("kind", JOBS)
def test_its_numbers_fit_each_other(kind: str) -> None:
    job, container = JOBS[kind], container_of(JOBS[kind])
    command = str([container["command"], container.get("lifecycle")])
    times = [float(found) for found in re.findall(r"--(?:drain|in|wait)[= ](\d+)", command)]
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] > sum(times) + AgentOptions().grace
    (least, most) = re.findall(r"--nnodes=(\d+):?(\d*)", command)[0]
    assert int(most or least) == job["parallelism"] == job["completions"]
    if kind == "Job":
        assert resource("PodDisruptionBudget", "train")["spec"]["minAvailable"] == int(least)


def test_what_selects_pods_finds_them() -> None:
    templates = [job["template"] for job in JOBS.values()]
    templates += [resource(*one)["spec"]["template"] for one in (("StatefulSet", "etcd"), ("Job", "etcd-password"))]
    labels = [template["metadata"]["labels"] for template in templates]
    selectors = [one for found in RESOURCES for one in selectors_in(found)]
    assert len(selectors) >= 8
    assert [one for one in selectors if not any(one.items() <= each.items() for each in labels)] == []
    assert resource("Service", JOB["template"]["spec"]["subdomain"])


def selectors_in(found: Any) -> Iterator[dict[str, str]]:
    """The labels of pods that a part of a resource asks for."""
    if isinstance(found, list):
        for one in found:
            yield from selectors_in(one)
    elif isinstance(found, dict):
        for name, value in found.items():
            if name in ("selector", "podSelector"):
                yield value.get("matchLabels", value)
            else:
                yield from selectors_in(value)


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    """An etcd with the password of the manifest, by the manifest's own commands."""
    require_service(EtcdServer)
    with EtcdServer() as server:
        job = resource("Job", "etcd-password")["spec"]["template"]["spec"]
        here = {"$(PASSWORD)": resource("Secret", "rdzv-etcd")["stringData"]["password"]}
        here |= {"etcd:2379": server.get_endpoint(), "etcdctl": str(server.find_binary().with_name("etcdctl"))}
        for container in (*job["initContainers"], *job["containers"]):
            words = "\n".join(container["command"])
            for there, value in here.items():
                words = words.replace(there, value)
            done = subprocess.run(words.split("\n"), capture_output=True, text=True, timeout=BUSY, check=False)
            assert done.returncode == 0, done.stderr
        yield server


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Pod], Pod]]:
    """Starts pods, with the program of the recipes, and ends them with the test."""
    (page,) = re.findall(r"^```python\n(import pathlib.*?)^```$", (ROOT / "docs/recipes.md").read_text(), re.M | re.S)
    (tmp_path / "train.py").write_text(page)
    monkeypatch.chdir(tmp_path)
    running: list[Agent] = []

    def started(pod: Pod) -> Pod:
        running.append(pod.start())
        return pod

    yield started
    for agent in running:
        agent.process.kill()
        agent.ends()


@pytest.fixture
def pod(etcd: EtcdServer, tmp_path: Path) -> Callable[[int], Pod]:
    """Makes the pod of an index of the Job; each has a name of its own."""
    numbers = itertools.count()

    def made(index: int) -> Pod:
        labels = {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/controller-uid": UID}
        metadata = {"name": f"train-{index}-{next(numbers)}xyz", "hostname": f"train-{index}", "labels": labels}
        return Pod(JOB["template"], metadata, index, tmp_path, {"etcd:2379": etcd.get_endpoint()}, SOON)

    return made


def test_a_pod_that_is_deleted_drains_and_another_takes_its_place(
    start: Callable[[Pod], Pod], pod: Callable[[int], Pod], tmp_path: Path
) -> None:
    first = start(pod(0))
    first.agent.says(f"run '{UID}', backend etcd-v3, .*, 2 to 4 nodes", limit=BUSY)
    assert not first.is_ready()
    pods = [first, start(pod(1))]
    for rank, one in enumerate(pods):
        one.agent.says(f"^round 1: rank {rank} of 2$", limit=BUSY)
    assert "can be read by every user" not in pods[0].agent.said
    assert pods[1].is_ready()
    hook, code = pods[1].delete()
    assert hook.returncode == 0, hook.stdout
    assert hook.stdout.endswith("It has left.\n")
    assert policy_action(JOB, code) == "Ignore"
    pods[0].agent.says("node drains: train-1-.* in 60 s: its pod ends$", limit=BUSY)
    pods[1] = start(pod(1))
    for rank, one in enumerate(pods):
        one.agent.says(f"^round 2: rank {rank} of 2$", limit=BUSY)
    (tmp_path / "enough").touch()
    assert [policy_action(JOB, one.agent.ends(BUSY)) for one in pods] == ["succeeded"] * 2
    late = start(pod(2))
    assert policy_action(JOB, late.agent.ends(BUSY)) == "succeeded"
    assert "the job is done" in late.agent.said


def test_the_hook_of_a_pod_that_is_in_no_run_fails_at_once(pod: Callable[[int], Pod]) -> None:
    hook = pod(0).execute(container_of(JOB)["lifecycle"]["preStop"])
    assert hook.returncode == ExitStatus.UNUSABLE.value
    assert "No node 'train-0-0xyz' is in the run" in hook.stdout


def test_the_probes_of_an_etcd_with_a_password_answer(etcd: EtcdServer) -> None:
    (container,) = resource("StatefulSet", "etcd")["spec"]["template"]["spec"]["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert etcd.get_client().get_text(container[probe]["httpGet"]["path"]).startswith('{"health":"true"')


def test_a_pod_of_the_job_set_is_the_one_that_is_recorded() -> None:
    recorded = tomllib.loads((ROOT / "launchers/cli/tests/platforms.toml").read_text())["job-set"]["environ"]
    given = {variable["name"] for variable in container_of(JOBS["JobSet"])["env"]}
    assert given == {name for name in recorded if name.startswith("JOBSET_")}


def test_the_pods_of_the_job_set_meet_at_its_first_one(tmp_path: Path) -> None:
    launch = Launch.here(pod_of_set(tmp_path, 1, restarts=2).environ)
    given = {name: taken.value for name, taken in launch.given().items()}
    assert given == {"run_id": UID, "attempt": 2}
    first = launch.first_host()
    assert first is not None
    assert first.value == "train-set-nodes-0-0.train-set"


def pod_of_set(folder: Path, index: int, restarts: int, uid: str = UID) -> Pod:
    """A pod of the JobSet, as its controller would make it."""
    of_set = {"jobset-name": "train-set", "jobset-uid": uid, "replicatedjob-name": REPLICATED["name"]}
    labels = {f"jobset.sigs.k8s.io/{name}": value for name, value in of_set.items()}
    labels["jobset.sigs.k8s.io/restart-attempt"] = str(restarts)
    metadata = {"name": f"train-set-nodes-0-{index}-x", "hostname": f"train-set-nodes-0-{index}", "labels": labels}
    return Pod(JOBS["JobSet"]["template"], metadata, index, folder, {}, SOON)


NAMES = """
import os, socket
found = socket.getaddrinfo
def getaddrinfo(host, *more, **others):
    if host == "train-set-nodes-0-0.train-set":
        if not os.path.exists("is_there"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        host = "127.0.0.1"
    return found(host, *more, **others)
socket.getaddrinfo = getaddrinfo
"""
"""Has Python know the first pod by its name, once it is there."""


@pytest.mark.soak
def test_a_job_set_that_has_lost_a_pod_is_started_again(
    start: Callable[[Pod], Pod], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NAMES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")
    uid = str(uuid.uuid4())  # the port of the store is made of it
    first, second = pods = [start(pod_of_set(tmp_path, index, restarts=0, uid=uid)) for index in range(2)]
    for pod in pods:
        pod.agent.says("backend c10d, endpoint train-set-nodes-0-0.train-set:2", limit=PATIENCE)
        pod.agent.says("Name or service not known", limit=PATIENCE)
    (tmp_path / "is_there").touch()
    for pod in pods:
        pod.agent.says(r"^round 1: rank \d of 2$", limit=PATIENCE)
    second.agent.process.terminate()  # it is evicted
    assert policy_action(JOBS["JobSet"], second.agent.ends(PATIENCE)) == "Count"
    assert (tmp_path / "checkpoint").exists()
    first.agent.process.terminate()  # the Job has failed, and the JobSet starts another one
    first.agent.ends(PATIENCE)
    pods = [start(pod_of_set(tmp_path, index, restarts=1, uid=uid)) for index in range(2)]
    for pod in pods:
        pod.agent.says("attempt from JOBSET_RESTART_ATTEMPT", limit=PATIENCE)
        pod.agent.says(r"^round 1: rank \d of 2$", limit=PATIENCE)
    (tmp_path / "enough").touch()
    assert [pod.agent.ends(PATIENCE) for pod in pods] == [0, 0]
