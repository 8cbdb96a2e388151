"""rdzv's contract on a store of torch's."""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, NamedTuple, TypeVar

from rdzv_core.backend import Capability, Entry, Expect, KeyValueBackend, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError
from rdzv_core.keys import escape
from rdzv_transport import ProcessLocal

from .layout import is_on_page
from .locator import GivenLocator, StoreLocator
from .run import Attempt, Run
from .shared import Shared, join, leave
from .store import Connection, Store
from .watch import Moment

_T = TypeVar("_T")


class _Use(NamedTuple):
    """One use of what this process shares: two threads that join it at once have two."""

    shared: Shared


class C10dRendezvousBackend(KeyValueBackend):
    """One run's keys in a TCPStore, a FileStore, or any other store of torch's.

    Args:
        store: A store that you bring: a client of a TCPStore, a FileStore, a HashStore, or a
            PrefixStore over one of them. It stays yours, and works on meanwhile. (`create_backend` makes a
            backend that finds or serves its store itself.)
        run_id: Which run.
        prefix: What the keys of every run begin with.

    Attributes:
        root: What the keys of this run begin with in the store.

    Raises:
        RendezvousParameterError: The run id or the prefix is empty.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.WATCH})
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.LEASE: "a c10d store never removes a key by itself",
        Capability.MULTI_ENDPOINT: "one process serves the TCPStore; while it is gone nothing works",
        Capability.DURABLE: "a TCPStore is in the memory of its host and ends with it (a FileStore stays)",
        Capability.TLS: "a TCPStore speaks plain TCP",
        Capability.AUTH: "a TCPStore serves every client that reaches its port",
    }

    def __init__(self, store: Any, run_id: str, *, prefix: str = "rdzv") -> None:
        self._locator: StoreLocator = store if isinstance(store, StoreLocator) else GivenLocator(store)
        self.root = root_of(prefix, run_id)
        # How many connections its calls leave to others.
        self._left = 0
        # What a fork copies is never touched again (see `shared`).
        self._uses = ProcessLocal(
            lambda: _Use(join(self._locator, self.root)),
            lambda inherited: None,
            lambda use: leave(use.shared),
            "This backend of c10d",
        )

    @property
    def name(self) -> str:
        return "c10d"

    def background(self) -> "C10dRendezvousBackend":
        """See `KeyValueBackend.background`: its calls leave one connection to others."""
        counterpart = copy(self)
        counterpart._left = 1
        return counterpart

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend.local_address`.

        Raises:
            RendezvousConnectionError: There is no route to the endpoint.
        """
        return self._locator.local_address()

    def read(self, key: str, *, timeout: float) -> Entry | None:
        return self._call(lambda run, connection: run.read(connection, key), timeout)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        began = time.monotonic()
        if is_on_page(prefix):
            return self._call(lambda run, connection: run.read_page(connection, prefix), timeout)
        entries = self._call(lambda run, connection: run.read_all(connection, prefix), timeout)
        return Snapshot(entries, Moment(began, time.monotonic()))

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        if lease is not None:
            raise RendezvousParameterError(f"The lease {lease!r} of '{key}' is not of c10d, which has none.")
        attempt = Attempt()
        try:
            return self._call(lambda run, connection: run.put(connection, key, value, expect, attempt), timeout)
        except RendezvousConnectionError:
            if attempt.cancel():
                raise
            return PutResult(PutOutcome.UNKNOWN)

    def delete(self, prefix: str, *, timeout: float) -> None:
        self._call(lambda run, connection: run.delete(connection, prefix), timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        deadline = time.monotonic() + timeout
        return self._uses.get().shared.watches.wait(prefix, since, deadline, self._uses.check_open)

    def close(self) -> None:
        self._uses.close()

    def call_in_order(self, work: Callable[[Store], _T], seconds: float) -> _T:
        """Ask the store itself, after all that this process has asked so before; see `Line.call`."""
        shared = self._uses.get().shared
        return shared.line.call(work, min(seconds, self._locator.read_timeout), self._uses.check_open)

    def await_keys(self, keys: Sequence[str], deadline: float) -> None:
        """Return when all keys of the store are there, or at the deadline; see `Line.await_keys`."""
        self._uses.get().shared.line.await_keys(keys, deadline, self._uses.check_open)

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        self._uses.check_open()

    def _call(self, work: Callable[[Run, Connection], _T], timeout: float) -> _T:
        deadline = self._deadline(timeout)
        shared = self._uses.get().shared
        pool, check_open = shared.pool, self._uses.check_open
        return pool.call(lambda one: work(shared.run, one), deadline, check_open, self._left)

    def _deadline(self, timeout: float) -> float:
        return time.monotonic() + min(timeout, self._locator.read_timeout)


def root_of(prefix: str, run_id: str) -> str:
    """What all keys of a run begin with: two segments, so that none is ever within another run's.

    Raises:
        RendezvousParameterError: The run id or the prefix is empty.
    """
    name = prefix.strip("/")
    if not run_id or not name:
        empty = f"prefix {prefix!r}" if run_id else f"run id {run_id!r}"
        raise RendezvousParameterError(f"The {empty} is empty; write one such as {'rdzv' if run_id else 'job-7'}.")
    return f"{escape(name)}/{escape(run_id)}/"
