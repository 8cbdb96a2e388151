"""rdzv's contract on etcd's v2 API."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final

from rdzv_core.backend import Capability, Expect, Lease, PutOutcome, PutResult, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError
from rdzv_core.keys import escape
from rdzv_transport import NetworkBackend

from .access import Access
from .keys import Keys


class EtcdV2Backend(NetworkBackend[Keys]):
    """One run's keys in etcd, in the directory ``/<prefix>/<run id>/``.

    A token is etcd's modifiedIndex, an entry's order its createdIndex.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.LEASE}
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.LEASE: "its TTLs are of single keys, and points in time: a wrong clock ends them early or late"
    }

    def __init__(self, access: Access, run_id: str, *, prefix: str = "rdzv", ttl: int | None = None) -> None:
        """Does not touch the network.

        Args:
            access: How etcd is reached.
            run_id: Which run.
            prefix: The directory in which all runs live; empty: etcd's root.
            ttl: Seconds after which etcd removes the keys of a run that is not written to any more; None: never.

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
        root = f"/{path}/{escape(run_id)}" if path else f"/{escape(run_id)}"
        self.access: Final = access
        """How etcd is reached."""
        cluster = access.cluster(root)
        super().__init__(lambda: Keys(access.client(root, cluster), root, ttl), root)

    @property
    def name(self) -> str:
        return "etcd-v2"

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """See `KeyValueBackend.put`. One that is lost costs a second call, and so does an unconditional overwriting."""
        if lease is not None:
            raise RendezvousParameterError(f"etcd v2 has no leases of ours; '{key}' cannot hang on {lease!r}.")
        if not isinstance(expect, Expect) and not _is_index(expect):
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=timeout))
        keys, deadline = self.link, time.monotonic() + timeout
        put = keys.put(key, value, expect, timeout)
        if put.outcome is PutOutcome.APPLIED:
            # It is done again soon enough if it fails.
            with suppress(RendezvousConnectionError):
                keys.keep_alive(deadline - time.monotonic())
        return put

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        return self.link.delete_version(key, token, timeout) if _is_index(token) else PutOutcome.CONFLICT


class EtcdBackend(EtcdV2Backend):
    """`EtcdV2Backend` by its legacy name."""

    @property
    def name(self) -> str:
        return "etcd"


def _is_index(token: Any) -> bool:
    """Whether this may be a token that a backend has returned. etcd takes 0 for no condition at all."""
    return type(token) is int and 0 < token < 2**63
