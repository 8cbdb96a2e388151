"""A real Slurm on this machine: a controller, and nodes that share its address, each with ports of its own."""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from rdzv_conformance.servers import GuardedProcess, ServiceMissingError, free_ports

NODES: Final = ("n1", "n2", "n3")

_PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scancel", "scontrol", "squeue")
_START: Final = 60.0
"""Seconds in which Slurm starts, or one of its commands answers, on a busy machine."""

_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

_CONFIGURATION: Final = """
ClusterName=rdzv
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A job that is started again waits until its first credential has expired, which takes two minutes by default.
AuthInfo=socket={folder}/munge,cred_expire=5
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MailProg=/bin/true
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """munged, slurmctld and three slurmd, in a folder of their own; no root, nothing left behind.

    Attributes:
        environment: The variables with which Slurm's commands find it.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rdzv-slurm-"))
        self._running: list[GuardedProcess] = []
        self.environment = {"SLURM_CONF": str(self._folder / "slurm.conf")}

    @classmethod
    def find_binary(cls) -> None:
        """See whether all of it is here.

        Raises:
            ServiceMissingError: It is not.
        """
        if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
            raise ServiceMissingError(
                f"No Slurm on this machine: {', '.join(missing)}. On Debian run `python3 dev/tools/services.py install "
                "slurm` (or `apt install slurm-wlm munge`) as root."
            )

    def __enter__(self) -> Self:
        """Start it, and return when it takes jobs."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        host, ports = socket.gethostname().partition(".")[0], free_ports(1 + len(NODES))
        key = self._folder / "key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        # Its programs may run as another user.
        self._folder.chmod(0o755)
        (self._folder / "slurm.conf").write_text(
            _CONFIGURATION.format(host=host, user=getpass.getuser(), folder=self._folder, ports=ports)
        )
        files = [f"--{name}-file={self._folder / name}" for name in ("key", "pid", "seed")]
        self._launch("munged", "--foreground", "--force", f"--socket={self._folder / 'munge'}", *files)
        self._wait_until((self._folder / "munge").exists)
        self._launch("slurmctld", "-D")
        for node in NODES:
            self._launch("slurmd", "-D", "-N", node)
        idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
        self._wait_until(lambda: self._run(*idle).stdout == f"{len(NODES)}\n")

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Slurm did not start within {_START:g} s:\n{self.log()}")
            time.sleep(0.05)

    def _launch(self, program: str, *arguments: str) -> None:
        with (self._folder / f"{program}.log").open("ab") as log:
            command = [str(shutil.which(program, path=_PATH)), *arguments]
            self._running.append(
                GuardedProcess(command, output=log, folder=self._folder, env={**os.environ, **self.environment})
            )

    def command(self, *command: str) -> str:
        """What one of Slurm's commands says.

        Raises:
            RuntimeError: It has failed.
        """
        done = self._run(*command)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}\n{self.log()}")
        return done.stdout

    def _run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_START, check=False)

    def log(self) -> str:
        """What its programs have said."""
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self._folder.glob("*.log")))

    def stop(self) -> None:
        """Stop it, with the jobs that still run, and remove its files."""
        for process in reversed(self._running):
            process.kill()
        # What slurmd starts is no child of it, and knows the configuration.
        while left := list(self._started()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._folder)

    def _started(self) -> Iterator[int]:
        mark = f"SLURM_CONF={self._folder}/".encode()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (folder / "environ").read_bytes():
                        yield int(folder.name)

    def __exit__(self, *exc_info: object) -> None:
        """Stop it."""
        self.stop()
