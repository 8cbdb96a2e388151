"""Launchers of MPI, real ones, which start a process on each of several nodes that are all this machine."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdzv_conformance.servers import ServiceMissingError

from . import services

NODES: Final = ("n1", "n2", "n3")

_REMOTE_SHELL: Final = """#!/bin/sh
# What the launchers call as ssh: options, the node, and the words of a command.
while [ "${1#-}" != "$1" ]; do shift; done
# Each node has a folder of its own for what is temporary: two daemons that make one at once disturb each other.
export TMPDIR="${0%/*}/$1"
mkdir -p "$TMPDIR"
shift
exec /bin/sh -c "$*"
"""


@dataclass(frozen=True)
class Launcher:
    """A launcher of MPI.

    Attributes:
        name: What rdzv calls it.
        program: Its path, or its name in PATH.
        start: The options that make it start one process on each node, by a program in the place of ssh, which stands
            for ``{shell}``.
        goes_on: The options by which a job that has lost a process goes on.
        service: What brings it in.
    """

    name: str
    program: str
    start: tuple[str, ...]
    goes_on: tuple[str, ...]
    service: str

    def find_binary(self) -> None:
        """See whether it is here.

        Raises:
            ServiceMissingError: It is not.
        """
        if shutil.which(self.program) is None:
            raise ServiceMissingError(
                f"No {self.name} on this machine. Run `python3 dev/tools/services.py install {self.service}`."
            )

    def command(self, folder: Path, *command: str, goes_on: bool = False) -> list[str]:
        """The command line that starts a command on each of `NODES`.

        Args:
            folder: Gets the program in the place of ssh.
            command: What is started.
            goes_on: Whether the job goes on when it has lost a process.
        """
        shell = folder / "shell"
        shell.write_text(_REMOTE_SHELL)
        shell.chmod(0o755)
        more = self.goes_on if goes_on else ()
        return [self.program, *more, *(option.format(shell=shell) for option in self.start), *command]

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which it takes root for a user, as a container has no other."""
        names = (f"{name}_ALLOW_RUN_AS_ROOT" for name in ("OMPI", "PRTE"))
        return {f"{name}{again}": "1" for name in names for again in ("", "_CONFIRM")}


_EVERY: Final = str(len(NODES))
_ONE_EACH: Final = ("-np", _EVERY, "--map-by", "ppr:1:node", "--host", ",".join(NODES))
# It asks for the address of a node before it calls the program that would do so.
_ADDRESSES: Final = ",".join(f"127.0.0.{place}" for place, _ in enumerate(NODES, start=2))

LAUNCHERS: Final = (
    Launcher(
        name="Open MPI 4",
        program="mpirun.openmpi",
        start=("--mca", "plm_rsh_agent", "{shell}", *_ONE_EACH),
        goes_on=("--enable-recovery",),
        service="open-mpi-4",
    ),
    Launcher(
        name="Open MPI 5",
        program=str(services.OPEN_MPI),
        start=("--prtemca", "plm_ssh_agent", "{shell}", *_ONE_EACH),
        goes_on=("--rtos", "recoverable,continuous"),
        service="open-mpi-5",
    ),
    Launcher(
        name="MPICH or Intel MPI",
        program=str(services.MPICH),
        start=("-launcher", "ssh", "-launcher-exec", "{shell}", "-hosts", _ADDRESSES, "-n", _EVERY, "-ppn", "1"),
        goes_on=("-disable-auto-cleanup",),
        service="mpich",
    ),
)
