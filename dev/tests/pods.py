"""Pods of manifests as processes of this machine: what a kubelet and the controller of a Job do with them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from .agents import BUSY, Agent

ROOT: Final = Path(__file__).parents[2]
RESOURCES: Final[list[Any]] = [
    found for path in sorted(ROOT.glob("examples/kubernetes/*.yaml")) for found in YAML(typ="safe").load_all(path)
]
"""All that the manifests describe."""

_REFERENCE: Final = re.compile(r"\$\((\w+)\)")
_LABEL: Final = re.compile(r"metadata\.labels\['(.+)'\]")


def resource(kind: str, name: str) -> Any:
    """One of them."""
    (found,) = (one for one in RESOURCES if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def policy_action(job: Mapping[str, Any], code: int, is_disrupted: bool = False) -> str:
    """What the controller of a Job does about a pod that has ended: it succeeded, or its podFailurePolicy says."""
    if code == 0:
        return "succeeded"
    for rule in job["podFailurePolicy"]["rules"]:
        exits = rule.get("onExitCodes")
        if (exits and code in exits["values"]) or ("onPodConditions" in rule and is_disrupted):
            return str(rule["action"])
    return "Count"


class Pod:
    """A pod with one container, which is a process with the variables and files of the pod.

    Args:
        template: What the Job makes its pods of.
        metadata: The name and the labels that the pod gets by its controller.
        index: Its place in the Job.
        folder: Stands for the file system of the container.
        here: What stands in the place of names that only the cluster has.
        options: Options beside those of the manifest.
    """

    def __init__(
        self,
        template: Mapping[str, Any],
        metadata: Mapping[str, Any],
        index: int,
        folder: Path,
        here: Mapping[str, str],
        options: str = "",
    ) -> None:
        self._metadata = metadata
        (self._container,) = template["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in self._container.get("volumeMounts", ())}
        self._here = {**here, **{path: f"{folder}{path}" for path in mounts.values()}}
        for volume in template["spec"].get("volumes", ()):
            self._put(volume["secret"], Path(f"{folder}{mounts[volume['name']]}"))
        self.environ = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": metadata["hostname"]}
        for variable in self._container["env"]:
            self.environ[variable["name"]] = self._value(variable)
        every = ",".join(filter(None, (self.environ.get("RDZV_OPTIONS"), options)))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environ = {**os.environ, "PATH": path, **self.environ, "RDZV_OPTIONS": every}

    def _put(self, volume: Mapping[str, Any], folder: Path) -> None:
        """Mount a secret, as the kubelet does: files behind a link, which it replaces when the secret changes."""
        data = folder / "..data"
        data.mkdir(parents=True, exist_ok=True)
        for name, text in resource("Secret", volume["secretName"])["stringData"].items():
            file = data / name
            if not file.exists():
                file.write_text(text)
                file.chmod(volume["defaultMode"])
                (folder / name).symlink_to(Path("..data", name))

    def _value(self, variable: Mapping[str, Any]) -> str:
        if "value" in variable:
            text = _REFERENCE.sub(lambda match: self.environ[match[1]], variable["value"])
            for there, here in self._here.items():
                text = text.replace(there, here)
            return text
        field = variable["valueFrom"]["fieldRef"]["fieldPath"]
        label = _LABEL.fullmatch(field)
        return str(self._metadata["labels"][label[1]] if label else self._metadata[field.removeprefix("metadata.")])

    def start(self) -> Agent:
        """Start its container."""
        self.agent = Agent(self._container["command"], self._environ)
        return self.agent

    def execute(self, hook: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as a probe and a hook do."""
        out = subprocess.PIPE
        return subprocess.run(
            hook["exec"]["command"],
            env=self._environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=4 * BUSY,
            check=False,
        )

    def is_ready(self) -> bool:
        """What its probe says."""
        return self.execute(self._container["readinessProbe"]).returncode == 0

    def delete(self) -> tuple[subprocess.CompletedProcess[str], int]:
        """End it as the kubelet does: its hook, SIGTERM; how the hook has ended, and the container."""
        hook = self.execute(self._container["lifecycle"]["preStop"])
        if self.agent.process.poll() is None:
            self.agent.process.send_signal(signal.SIGTERM)
        return hook, self.agent.ends(BUSY)
