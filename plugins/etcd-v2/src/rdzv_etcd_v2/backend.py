"""rdzv's contract on etcd's v2 API."""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final

from rdzv.backend import Capability, Entry, Expect, KeyValueBackend, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv.errors import RendezvousConnectionError, RendezvousParameterError
from rdzv.keys import escape
from rdzv_transport import ProcessLocal, Watches

from .access import Access
from .keys import Keys
from .watch import follow

__all__ = ["EtcdBackend", "EtcdV2Backend"]


class EtcdV2Backend(KeyValueBackend):
    """One run's keys in etcd, in the directory ``/<prefix>/<run id>/``.

    A token is etcd's modifiedIndex, an entry's order its createdIndex.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.LEASE}
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.LEASE: "its TTLs are points in time on a member's clock, so that an outage ends them all"
    }

    def __init__(self, access: Access, run_id: str, *, prefix: str = "rdzv", ttl: int | None = None) -> None:
        """Does not touch the network.

        Args:
            access: How etcd is reached.
            run_id: Which run.
            prefix: The directory in which all runs live; empty: etcd's root.
            ttl: Seconds after which etcd removes the keys of a run that nobody writes to any more; None: never.

        Raises:
            RendezvousParameterError: These cannot be used.
        """
        if not run_id:
            raise RendezvousParameterError("The run id must be a non-empty string.")
        path = prefix.strip("/")
        if path and (wrong := [part for part in path.split("/") if part in ("", ".", "..")]):
            part = f"the part '{wrong[0]}'" if wrong[0] else "an empty part"
            raise RendezvousParameterError(
                f"The prefix '{prefix}' has {part}, which etcd takes out of a path. Write it like team/jobs."
            )
        self._root = f"/{path}/{escape(run_id)}" if path else f"/{escape(run_id)}"
        self.access: Final = access
        """How etcd is reached."""
        self._ttl = ttl
        self._links = ProcessLocal(
            lambda: _Link(access, self._root, ttl),
            lambda link: link.keys.client.discard_inherited(),
            lambda link: link.keys.client.close(),
            f"This backend of the run at {self._root}",
        )

    @property
    def name(self) -> str:
        """See `RendezvousBackend.name`."""
        return "etcd-v2"

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend.local_address`.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        return self._link.keys.client.local_address()

    def read(self, key: str, *, timeout: float) -> Entry | None:
        """See `KeyValueBackend.read`."""
        return self._link.keys.read(key, timeout)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend.read_all`."""
        return self._link.keys.read_all(prefix, timeout)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """See `KeyValueBackend.put`. One that is lost costs a second call, and so does an unconditional overwriting."""
        if lease is not None:
            raise RendezvousParameterError(f"etcd v2 has no leases of ours; '{key}' cannot hang on {lease!r}.")
        link = self._link
        if not isinstance(expect, Expect) and not _is_index(expect):
            return PutResult(PutOutcome.CONFLICT, link.keys.read(key, timeout))
        deadline = time.monotonic() + timeout
        put = link.keys.put(key, value, expect, timeout)
        if self._ttl and put.outcome is PutOutcome.APPLIED and link.must_be_kept(self._ttl):
            # It is done again soon enough if it fails.
            with suppress(RendezvousConnectionError):
                link.keys.keep_alive(deadline - time.monotonic())
        return put

    def delete(self, prefix: str, *, timeout: float) -> None:
        """See `KeyValueBackend.delete`."""
        self._link.keys.delete(prefix, timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend.wait`. A call per change or two, and two in ten seconds without any."""
        return self._link.watches.wait(prefix, since, timeout)

    def close(self) -> None:
        """See `KeyValueBackend.close`."""
        self._links.close()

    @property
    def _link(self) -> "_Link":
        return self._links.get()


class EtcdBackend(EtcdV2Backend):
    """`EtcdV2Backend` by its legacy name."""

    @property
    def name(self) -> str:
        """See `RendezvousBackend.name`."""
        return "etcd"


class _Link:
    """What one process has of etcd."""

    def __init__(self, access: Access, root: str, ttl: int | None) -> None:
        self.keys = Keys(access.client(root), root, ttl)
        self.watches = Watches("etcd-v2", follow(self.keys), self.keys.client.check_open)
        self._kept = time.monotonic()
        self._lock = threading.Lock()

    def must_be_kept(self, ttl: int) -> bool:
        """Whether it is time to keep the run's keys alive; says so to one thread only."""
        with self._lock:
            now = time.monotonic()
            if now - self._kept < ttl / 4:
                return False
            self._kept = now
            return True


def _is_index(token: Any) -> bool:
    """Whether a token may be one of ours. etcd takes 0 for no condition at all."""
    return type(token) is int and 0 < token < 2**63
