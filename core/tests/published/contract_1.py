"""A plugin as it was published for version 1 of the contract (rdzv-core 0.1). It is never changed."""

import itertools
import threading
from collections.abc import Mapping
from typing import ClassVar

from rdzv_core import (
    ABSENT,
    ANY,
    BackendPlugin,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    Option,
    PutOutcome,
    PutResult,
    RendezvousConnectionError,
    RendezvousParameters,
    Snapshot,
    Token,
    escape,
    parse_options,
)

OPTIONS = (Option("color", "text", "green", "A colour.", choices=("red", "green")),)


class AcmeLease(Lease):
    def __init__(self, ttl: float) -> None:
        super().__init__(ttl)
        self._ended = False

    def keep_alive(self, timeout: float) -> bool:
        return not self._ended

    def revoke(self, timeout: float) -> None:
        self._ended = True


class AcmeBackend(KeyValueBackend):
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.LEASE})
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.WATCH: "It is polled.",
        Capability.MULTI_ENDPOINT: "It is one.",
        Capability.DURABLE: "It is in memory.",
        Capability.TLS: "It is in this process.",
        Capability.AUTH: "It is in this process.",
    }
    min_lease_ttl: ClassVar[float] = 1.0

    def __init__(self, run_id: str) -> None:
        self._run = escape(run_id)
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._closed = False

    @property
    def name(self) -> str:
        return "published"

    @property
    def local_address(self) -> str:
        return "127.0.0.1"

    def read(self, key: str, *, timeout: float) -> Entry | None:
        return self.read_all(key, timeout=timeout).entries.get(key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        with self._lock:
            if self._closed:
                raise RendezvousConnectionError("It is closed.")
            entries = {k: e for k, e in self._entries.items() if k == prefix or k.startswith(prefix + "/")}
            return Snapshot(entries, revision=next(self._numbers))

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        with self._lock:
            there, number = self._entries.get(key), next(self._numbers)
            if expect is not ANY and expect != (ABSENT if there is None else there.token):
                return PutResult(PutOutcome.CONFLICT, there)
            self._entries[key] = Entry(value, number, number if there is None else there.order)
            return PutResult(PutOutcome.APPLIED, self._entries[key])

    def delete(self, prefix: str, *, timeout: float) -> None:
        for key in self.read_all(prefix, timeout=timeout).entries:
            with self._lock:
                self._entries.pop(key, None)

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        return AcmeLease(max(ttl, self.min_lease_ttl))

    def close(self) -> None:
        self._closed = True


def create_backend(params: RendezvousParameters) -> tuple[AcmeBackend, None]:
    assert parse_options(params.config, OPTIONS)["color"] == "red"
    return AcmeBackend(params.run_id), None


BACKEND = BackendPlugin(
    summary="a plugin of long ago",
    options=OPTIONS,
    create_backend=create_backend,
    backend_type=AcmeBackend,
    default_endpoint="nowhere",
    example_endpoint="host:1",
    contract=1,
)
