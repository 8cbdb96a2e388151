"""rdzv's contract on etcd v3."""

import contextlib
import math
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from rdzv_core import ABSENT, ANY, Capability, Entry, Expect, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.keys import escape
from rdzv_transport import ChangeWatch, NetworkBackend, Present, ReplyLostError, Watches, number_of

from .client import Client
from .cluster import one_cluster
from .events import Events
from .failures import LeaseNotFoundError
from .wire import KeySpace, encode, read_entry

_ABSENT: Final = [{"target": "CREATE", "result": "EQUAL", "create_revision": "0"}]
"""What etcd must compare where a key must not exist."""


class EtcdV3Backend(NetworkBackend["EtcdLink"]):
    """One run's keys in etcd, under ``/<prefix>/<run id>/``.

    A token is etcd's mod_revision, an entry's order its create_revision.
    """

    name = "etcd-v3"
    capabilities = frozenset(Capability)
    min_lease_ttl = 2.0
    # etcd's own limit (--max-txn-ops), by default.
    creates_at_once = 128

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        run_id: str,
        *,
        prefix: str = "rdzv",
        tls: Present[ssl.SSLContext] | None = None,
        server_name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        request_timeout: float = 3.0,
        same_cluster: bool = True,
    ) -> None:
        """Does not touch the network.

        Args:
            endpoints: The members of one etcd; the first is tried first, one that fails last.
            run_id: Which run.
            prefix: The key under which all runs live.
            tls: How to verify the members, and with which certificate of our own; None: no TLS.
            server_name: The name in the members' certificates, if it is not the endpoint's.
            user: The user that logs in, with `password`; None: no login.
            password: See `user`. One that was taken from a file follows it.
            request_timeout: Seconds that one of several endpoints has to answer before the next is tried.
            same_cluster: Whether only the cluster counts that answers first.

        Raises:
            RendezvousParameterError: These cannot be used.
        """
        if not endpoints or not run_id or not prefix.strip("/"):
            raise RendezvousParameterError("etcd needs an endpoint, a run id and a prefix; one of them is empty.")
        if (user is None) != (password is None):
            raise RendezvousParameterError("The options 'user' and 'password' need each other; one is missing.")
        self._keys = KeySpace(f"/{prefix.strip('/')}/{escape(run_id)}/")

        cluster = one_cluster() if same_cluster else None
        settings = {"tls": tls, "server_name": server_name, "request_timeout": request_timeout, "cluster": cluster}

        def link() -> EtcdLink:
            return EtcdLink(Client(endpoints, user, password, **settings), self._keys)

        super().__init__(link, self._keys.root)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        compare = _condition(expect)
        if compare is None:
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=timeout))
        where = self._keys.key(key)
        write = where | {"value": encode(value), "lease": _lease_id(lease)}
        # Both ways answer with the key's revisions, so that nothing has to be asked again.
        request = {
            "compare": [where | condition for condition in compare],
            "success": [{"request_put": write}, {"request_range": where | {"keys_only": True}}],
            "failure": [{"request_range": where}],
        }

        def read(reply: dict[str, Any]) -> PutResult:
            there = _first_entry(reply["responses"][-1]["response_range"])
            if not reply.get("succeeded", False):
                return PutResult(PutOutcome.CONFLICT, there)
            if there is None:
                raise ValueError("what was written is not there")
            return PutResult(PutOutcome.APPLIED, Entry(value, there.token, there.order))

        started = time.monotonic()
        try:
            return self.link.etcd.call("/v3/kv/txn", request, timeout, read, repeatable=False)
        except ReplyLostError:
            return PutResult(PutOutcome.UNKNOWN)
        except LeaseNotFoundError:
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=started + timeout - time.monotonic()))

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        compare = None if isinstance(token, Expect) else _condition(token)
        if compare is None:
            return PutOutcome.CONFLICT
        where = self._keys.key(key)
        request = {
            "compare": [where | condition for condition in compare],
            "success": [{"request_delete_range": where}],
        }
        return self._transact(request, timeout)

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        wheres = {key: self._keys.key(key) for key in values}
        request = {
            "compare": [where | condition for where in wheres.values() for condition in _ABSENT],
            "success": [{"request_put": wheres[key] | {"value": encode(value)}} for key, value in values.items()],
        }
        return self._transact(request, timeout)

    def _transact(self, request: Mapping[str, Any], timeout: float) -> PutOutcome:
        """Do several things at once on a condition."""

        def read(reply: dict[str, Any]) -> PutOutcome:
            number_of(reply["header"]["revision"])
            return PutOutcome.APPLIED if reply.get("succeeded", False) else PutOutcome.CONFLICT

        try:
            return self.link.etcd.call("/v3/kv/txn", request, timeout, read, repeatable=False)
        except ReplyLostError:
            return PutOutcome.UNKNOWN

    def open_lease(self, ttl: float, *, timeout: float) -> "EtcdLease":
        """See `KeyValueBackend.open_lease`. etcd counts in whole seconds."""
        request = {"TTL": str(max(math.ceil(ttl), math.ceil(self.min_lease_ttl)))}

        def read(reply: dict[str, Any]) -> EtcdLease:
            return EtcdLease(self, str(reply["ID"]), float(number_of(reply["TTL"])))

        return self.link.etcd.call("/v3/lease/grant", request, timeout, read)


class EtcdLease(Lease):
    """A lease of etcd's own."""

    def __init__(self, backend: EtcdV3Backend, number: str, ttl: float) -> None:
        """Lease `number` of `backend`'s etcd, granted for `ttl` seconds."""
        super().__init__(ttl)
        self.number = number
        self._backend = backend

    def keep_alive(self, timeout: float) -> bool:

        def read(reply: dict[str, Any]) -> bool:
            return int(reply["result"].get("TTL", 0)) > 0

        return self._backend.link.etcd.call("/v3/lease/keepalive", {"ID": self.number}, timeout, read)

    def revoke(self, timeout: float) -> None:
        with contextlib.suppress(LeaseNotFoundError):
            etcd = self._backend.link.etcd
            etcd.call("/v3/lease/revoke", {"ID": self.number}, timeout, lambda reply: reply["header"])


class EtcdLink:
    """A `rdzv_transport.backend.Link` to etcd, and a `rdzv_transport.changes.Source`: what one process has of it.

    Attributes:
        etcd: By which it is called.
        client: The connections underneath.
        lost: The newest revision of what etcd has lost.
    """

    lost = 0

    def __init__(self, etcd: Client, keys: KeySpace) -> None:
        self.etcd = etcd
        self.client = etcd.http
        self._keys = keys
        self._watches = Watches(partial(ChangeWatch, self))

    @property
    def newest(self) -> int:
        """The newest revision that any answer named."""
        return self.etcd.newest

    @newest.setter
    def newest(self, revision: int) -> None:
        self.etcd.newest = revision

    def read(self, key: str, timeout: float) -> Entry | None:
        return self.etcd.call("/v3/kv/range", self._keys.key(key), timeout, _first_entry)

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        """Read every key at or under `prefix`."""

        def read(reply: dict[str, Any]) -> Snapshot:
            return Snapshot(self._keys.entries(reply.get("kvs", ()), prefix), number_of(reply["header"]["revision"]))

        return self.etcd.call("/v3/kv/range", self._keys.under(prefix), timeout, read)

    def open_reading(self, prefix: str, timeout: float) -> None:
        """There is none: a call may have to log in again."""

    def changes(self, prefix: str, known: int, timeout: float) -> Events:
        """Watch what is at or under `prefix`."""
        return Events(self.etcd, self._keys, prefix, known, timeout)

    def delete(self, prefix: str, timeout: float) -> None:
        """Removes all at once."""
        everything = (self._keys.key(prefix), self._keys.below(prefix))
        request = {"success": [{"request_delete_range": part} for part in everything]}
        self.etcd.call("/v3/kv/txn", request, timeout, lambda reply: reply["responses"])

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """The first wait for a prefix costs one call to etcd, those that follow none."""
        return self._watches.wait(prefix, since, timeout)

    def close(self) -> None:
        """End every connection, and the watches that no call waits for."""
        self.client.close()
        self._watches.close()


def _first_entry(reply: dict[str, Any]) -> Entry | None:
    pairs = reply.get("kvs", ())
    return read_entry(pairs[0]) if pairs else None


def _condition(expect: Token | Expect) -> list[dict[str, str]] | None:
    """What etcd must compare; None if nothing can match, since the token is not one of etcd's."""
    if expect is ANY:
        return []
    if expect is ABSENT:
        return _ABSENT
    if type(expect) is int and 0 < expect < 2**63:
        return [{"target": "MOD", "result": "EQUAL", "mod_revision": str(expect)}]
    return None


def _lease_id(lease: Lease | None) -> str:
    if lease is None:
        return "0"
    if not isinstance(lease, EtcdLease):
        raise RendezvousParameterError(f"The lease {lease!r} is not of etcd; take one from this backend's open_lease.")
    return lease.number
