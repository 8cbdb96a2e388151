"""A node without a rendezvous: what the service's own client takes for the calls that no rendezvous can do without.

Each node has a lease where the service knows such a thing, writes a record of its own for each round, waits for a
world, and reads it; the first node counts the records, and writes the world. Nothing is made sure of: no reply is
lost, no node dies, none is late or asks for something else. So this is a floor, and no peer.
"""

import contextlib
import importlib
import json
import threading
import time
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, Final

from . import TALLY, FloorNode, Node, NodeSpec
from .counting import count_store_calls

__all__ = ["load", "make"]

_MODULES: Final = {
    "c10d": "torch.distributed",
    "consul": "consul",
    "etcd-v2": "etcd",
    "etcd-v3": "etcd3gw",
    "sqlite": "sqlite3",
    "zookeeper": "kazoo.client",
}
_PAUSE: Final = 0.01
"""Seconds between two looks of the first node at the records."""
_UNWATCHED: Final = 0.05
"""Seconds between two looks of a node that waits, where the service has no watch."""
_TTL: Final = 30
_RECORD: Final = "x" * 150
"""About what a node of rdzv's writes."""


def load(backend: str) -> None:
    """Import the service's client; count calls where no server counts them."""
    module = importlib.import_module(_MODULES[backend])
    if backend == "c10d":
        count_store_calls(module.Store)


def make(spec: NodeSpec) -> Node:
    """Make a node; it connects at once."""
    kinds: dict[str, Any] = {
        "c10d": _C10d,
        "consul": _Consul,
        "etcd-v2": _EtcdV2,
        "etcd-v3": _EtcdV3,
        "sqlite": _Sqlite,
        "zookeeper": _ZooKeeper,
    }
    return _Node(spec, kinds[spec.backend](spec))


class _Client(ABC):
    """What the service's own client does for a node; the folders and their keys are names of this run."""

    @abstractmethod
    def open_lease(self) -> None:
        """Have a lease, on which records hang; nothing where the service knows none."""

    @abstractmethod
    def write(self, folder: str, name: str, value: str, *, leased: bool) -> None:
        """Write a key that is not there."""

    @abstractmethod
    def count(self, folder: str) -> int:
        """How many keys are there."""

    @abstractmethod
    def await_value(self, folder: str, name: str) -> str:
        """Wait until a key is there; its value."""


class _Node(FloorNode):
    def __init__(self, spec: NodeSpec, client: _Client) -> None:
        self._spec = spec
        self._client = client
        self._round = 0

    def join(self) -> int:
        self._round += 1
        records, worlds = (f"{self._spec.run_id}-{kind}-{self._round}" for kind in ("records", "worlds"))
        if self._round == 1:
            self._client.open_lease()
        self._client.write(records, str(self._spec.number), _RECORD, leased=True)
        if self._spec.number == 0:
            while self._client.count(records) < self._spec.min_nodes:
                time.sleep(_PAUSE)
            world = json.dumps({"size": self._spec.min_nodes, "round": self._round, "rank 0": _RECORD})
            self._client.write(worlds, "world", world, leased=False)
        return int(json.loads(self._client.await_value(worlds, "world"))["size"])


class _C10d(_Client):
    """torch's TCPStore. Its keys cannot be listed, so a counter tells how many there are; a lease is a heartbeat."""

    def __init__(self, spec: NodeSpec) -> None:
        host, port = spec.endpoint.split(":")
        distributed = importlib.import_module("torch.distributed")
        self._store = distributed.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=spec.limit))
        self._heartbeat = f"{spec.run_id}-heartbeats-{spec.number}"

    def open_lease(self) -> None:
        self._store.set(self._heartbeat, "1")

    def write(self, folder: str, name: str, value: str, *, leased: bool) -> None:
        self._store.set(f"{folder}/{name}", value)
        if leased:
            self._store.add(f"{folder}-count", 1)

    def count(self, folder: str) -> int:
        return int(self._store.add(f"{folder}-count", 0))

    def await_value(self, folder: str, name: str) -> str:
        self._store.wait([f"{folder}/{name}"])
        value: bytes = self._store.get(f"{folder}/{name}")
        return value.decode()


class _Consul(_Client):
    """py-consul."""

    def __init__(self, spec: NodeSpec) -> None:
        host, port = spec.endpoint.split(":")
        self._client = importlib.import_module("consul").Consul(host, int(port))
        self._session: str | None = None
        self._client.kv.get(spec.run_id)

    def open_lease(self) -> None:
        self._session = self._client.session.create(ttl=_TTL, behavior="delete", lock_delay=0)

    def write(self, folder: str, name: str, value: str, *, leased: bool) -> None:
        self._client.kv.put(f"{folder}/{name}", value, acquire=self._session if leased else None)

    def count(self, folder: str) -> int:
        return len(self._client.kv.get(f"{folder}/", keys=True)[1] or ())

    def await_value(self, folder: str, name: str) -> str:
        index, found = None, None
        while found is None:
            index, found = self._client.kv.get(f"{folder}/{name}", index=index, wait="60s")
        value: bytes = found["Value"]
        return value.decode()


class _EtcdV2(_Client):
    """python-etcd."""

    def __init__(self, spec: NodeSpec) -> None:
        host, port = spec.endpoint.split(":")
        self._etcd = importlib.import_module("etcd")
        self._client = self._etcd.Client(host, int(port), read_timeout=spec.limit)
        self._index = 0
        _ = self._client.version

    def open_lease(self) -> None:
        """Nothing: a key has a time to live of its own."""

    def write(self, folder: str, name: str, value: str, *, leased: bool) -> None:
        written = self._client.write(f"{folder}/{name}", value, ttl=_TTL if leased else None)
        if leased:
            self._index = written.modifiedIndex

    def count(self, folder: str) -> int:
        return len(list(self._client.read(folder).leaves))

    def await_value(self, folder: str, name: str) -> str:
        while True:
            try:
                return str(self._client.watch(f"{folder}/{name}", index=self._index + 1).value)
            except self._etcd.EtcdEventIndexCleared as error:
                # More has happened since than etcd remembers.
                self._index = error.payload["index"]
                with contextlib.suppress(self._etcd.EtcdKeyNotFound):
                    return str(self._client.read(f"{folder}/{name}").value)


class _EtcdV3(_Client):
    """etcd3gw, over the gateway, as rdzv's plugin is."""

    def __init__(self, spec: NodeSpec) -> None:
        host, port = spec.endpoint.split(":")
        self._client = importlib.import_module("etcd3gw").client(host, int(port), api_path="/v3/")
        self._lease: Any = None
        self._client.get(spec.run_id)

    def open_lease(self) -> None:
        self._lease = self._client.lease(_TTL)

    def write(self, folder: str, name: str, value: str, *, leased: bool) -> None:
        self._client.put(f"{folder}/{name}", value, lease=self._lease if leased else None)

    def count(self, folder: str) -> int:
        return len(self._client.get(f"{folder}/", range_end=f"{folder}0", keys_only=True, metadata=True))

    def await_value(self, folder: str, name: str) -> str:
        # From the beginning, so that it makes no difference which comes first.
        event = self._client.watch_once(f"{folder}/{name}", start_revision=1)
        value: bytes = event["kv"]["value"]
        return value.decode()


class _Sqlite(_Client):
    """sqlite3, whose only way to wait is to look again."""

    def __init__(self, spec: NodeSpec) -> None:
        sqlite3 = importlib.import_module("sqlite3")
        self._refusal = sqlite3.OperationalError
        # Each node is one thread, but not the one that makes it.
        path = f"{spec.endpoint}.bare"  # beside rdzv's, which refuses a database of another program
        self._database = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        self._write_ahead(time.monotonic() + spec.limit)
        self._call("CREATE TABLE IF NOT EXISTS bare (folder TEXT, name TEXT, value TEXT, PRIMARY KEY (folder, name))")

    def open_lease(self) -> None:
        self._call("INSERT INTO bare VALUES ('leases', hex(randomblob(8)), ?)", str(_TTL))

    def write(self, folder: str, name: str, value: str, *, leased: bool) -> None:
        self._call("INSERT INTO bare VALUES (?, ?, ?)", folder, name, value)

    def count(self, folder: str) -> int:
        return int(self._call("SELECT count(*) FROM bare WHERE folder = ?", folder)[0][0])

    def await_value(self, folder: str, name: str) -> str:
        look = "SELECT value FROM bare WHERE folder = ? AND name = ?"
        TALLY.call()  # as of rdzv's `wait`, which is one call however often it looks
        while not (found := self._look(look, folder, name)):
            time.sleep(_UNWATCHED)
        return str(found[0][0])

    def _write_ahead(self, deadline: float) -> None:
        TALLY.call()
        while True:
            try:
                self._look("PRAGMA journal_mode=WAL")
            except self._refusal:
                # Another node sets it: SQLite waits for no lock here, whatever the connection's timeout.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_UNWATCHED)
            else:
                return

    def _call(self, statement: str, *values: str) -> list[Any]:
        TALLY.call()
        return self._look(statement, *values)

    def _look(self, statement: str, *values: str) -> list[Any]:
        rows: list[Any] = self._database.execute(statement, values).fetchall()
        return rows


class _ZooKeeper(_Client):
    """kazoo."""

    def __init__(self, spec: NodeSpec) -> None:
        self._client = importlib.import_module("kazoo.client").KazooClient(spec.endpoint, timeout=_TTL)
        self._client.start(spec.limit)
        if spec.number == 0:
            for kind, number in (("records", 1), ("worlds", 1), ("records", 2), ("worlds", 2)):
                self._client.ensure_path(f"{spec.run_id}-{kind}-{number}")

    def open_lease(self) -> None:
        """Nothing: the session is one."""

    def write(self, folder: str, name: str, value: str, *, leased: bool) -> None:
        self._client.create(f"{folder}/{name}", value.encode(), ephemeral=leased)

    def count(self, folder: str) -> int:
        return len(self._client.get_children(folder))

    def await_value(self, folder: str, name: str) -> str:
        there = threading.Event()
        if self._client.exists(f"{folder}/{name}", watch=lambda _: there.set()) is None:
            there.wait()
        value: bytes = self._client.get(f"{folder}/{name}")[0]
        return value.decode()
