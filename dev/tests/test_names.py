"""What names lead to: the own one elsewhere or nowhere, and the service's only after a while.

The agents live in mount and UTS namespaces of their own, so that the machine's own resolver reads a file of the test.
"""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from rdzv_conformance.servers import SERVERS, LocalService, TcpStoreServer, free_ports, require_service

from .agents import Agents, program

SERVICES: Final[Mapping[str, type[LocalService]]] = {**SERVERS, "c10d": TcpStoreServer}
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"c10d": {"is_host": "false"}}
"""The store is the server's, and no agent's."""

PLACE: Final = """
import os
os.write(1, f"here: {os.environ['MASTER_ADDR']}\\n".encode())  # at once: the agent writes to the same pipe
"""


class Machine:
    """Where agents run: it has a name, and a file of the names that it knows."""

    def __init__(self, folder: Path, name: str) -> None:
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n::1 localhost\n")
        enter = 'mount --bind "$0" /etc/hosts && echo "$1" > /proc/sys/kernel/hostname && shift && exec "$@"'
        alone = ("unshare", "--user", "--map-root-user", "--mount", "--uts")
        self.within = (*alone, "sh", "-c", enter, str(self._hosts), name)

    def knows(self, name: str, address: str) -> None:
        """From now on the name leads to this address."""
        with self._hosts.open("a") as file:
            file.write(f"{address} {name}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Machine]:
    """Makes machines; skips where a namespace cannot be made."""

    def machine(name: str = "here.example") -> Machine:
        made = Machine(tmp_path, name)
        tried = subprocess.run([*made.within, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"no namespaces here: {tried.stderr}")
        return made

    return machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "programs").mkdir()
    return made


@pytest.fixture(params=SERVICES)
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalService]]:
    """A backend's name, and its service."""
    require_service(SERVICES[request.param])
    with SERVICES[request.param]() as server:
        yield request.param, server


@contextlib.contextmanager
def agents(backend: str, endpoint: str) -> Iterator[Agents]:
    with contextlib.closing(Agents(backend, endpoint)) as agents:
        yield agents


class TestTheOwnName:
    """The address that others are given is the one towards the service: nothing is asked of the own name."""

    @pytest.mark.parametrize("known", [True, False], ids=["elsewhere", "nowhere"])
    def test_does_not_matter(
        self, machine: Callable[[str], Machine], running: tuple[str, LocalService], folder: Path, known: bool
    ) -> None:
        backend, server = running
        here = machine("elsewhere.example")
        if known:
            here.knows("elsewhere.example", "192.0.2.1")  # for documentation: no machine has it (RFC 5737)
        with agents(backend, server.get_endpoint()) as found:
            options = OPTIONS.get(backend, {})
            node = found.start(*program(folder, PLACE), nnodes="1", options=options, within=here.within)
            node.says("here: 127.0.0.1$")
            assert node.ends() == 0

    @pytest.mark.parametrize("backend", ["sqlite", "c10d"])
    def test_does_not_matter_to_what_serves_itself(
        self, machine: Callable[[str], Machine], backend: str, tmp_path: Path, folder: Path
    ) -> None:
        here = machine("elsewhere.example")
        here.knows("elsewhere.example", "192.0.2.1")
        endpoint = f"127.0.0.1:{free_ports(1)[0]}" if backend == "c10d" else str(tmp_path / "rdzv.db")
        with agents(backend, endpoint) as found:
            node = found.start(*program(folder, PLACE), nnodes="1", within=here.within)
            node.says("here: 127.0.0.1$")
            assert node.ends() == 0


def test_a_name_of_the_service_that_resolves_late_is_waited_for(
    machine: Callable[[str], Machine], running: tuple[str, LocalService], folder: Path
) -> None:
    backend, server = running
    here = machine("here.example")
    port = server.get_endpoint().rpartition(":")[2]
    with agents(backend, f"late.example:{port}") as found:
        options = {"join_timeout": 60, **OPTIONS.get(backend, {})}
        node = found.start(*program(folder, PLACE), nnodes="1", options=options, within=here.within)
        node.says("no call to the service has succeeded")
        here.knows("late.example", "127.0.0.1")
        known = time.monotonic()
        node.says("here: 127.0.0.1$")
        print(f"{backend}: {time.monotonic() - known:.1f} s after the name was known")
        assert node.ends() == 0
