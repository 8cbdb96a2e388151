"""rdzv's contract on ZooKeeper."""

import ssl
import time
from collections.abc import Sequence

from kazoo.protocol.serialization import Sync  # type: ignore[import-untyped]
from rdzv.backend import (
    ABSENT,
    ANY,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    PutOutcome,
    PutResult,
    Snapshot,
    Token,
)
from rdzv.endpoints import Endpoint
from rdzv.errors import RendezvousParameterError
from rdzv_transport import ProcessLocal, ReplyLostError

from .cache import PrefixCaches
from .ensemble import Ensemble, Identity
from .failures import SessionEndedError
from .layout import Layout, Version
from .removal import remove
from .security import Login, parse_acl
from .session import Session
from .writing import Writer, look

__all__ = ["ZooKeeperBackend"]


class ZooKeeperBackend(KeyValueBackend):
    """One run's keys in ZooKeeper, under ``/<prefix>/<run id>/``. See `layout` for how they stand there."""

    name = "zookeeper"
    capabilities = frozenset(Capability)
    # min_lease_ttl stays 0: the shortest session is a setting of the servers, two of their ticks by default.

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        run_id: str,
        *,
        prefix: str = "rdzv",
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        sasl: str | None = None,
        sasl_service: str = "zookeeper",
        acl: str | None = None,
        request_timeout: float = 3.0,
    ) -> None:
        """Does not touch the network.

        The arguments that are not named here are the options of the same names.

        Args:
            endpoints: The servers of one ensemble; the first is tried first, one that fails last.
            run_id: Which run.
            tls: How to verify the servers, and with which certificate of our own; None: no TLS.

        Raises:
            RendezvousParameterError: These cannot be used.
        """
        if not endpoints:
            raise RendezvousParameterError("ZooKeeper needs an endpoint, such as localhost:2181; there is none.")
        self._layout = Layout(prefix, run_id)
        login = Login(user, password, sasl, sasl_service)
        self._writer = Writer(self._layout, parse_acl(acl, login))

        def link() -> _Link:
            ensemble = Ensemble(endpoints, login, tls=tls, server_name=server_name, request_timeout=request_timeout)
            return _Link(ensemble, self._layout)

        owner = f"This backend of the run at {self._layout.root}"
        self._links = ProcessLocal(link, lambda link: link.ensemble.discard_inherited(), _Link.close, owner)

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend.local_address`.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        return self._link.ensemble.local_address()

    def read(self, key: str, *, timeout: float) -> Entry | None:
        """See `KeyValueBackend.read`."""
        return look(self._layout.path(key), self._link.session, time.monotonic() + timeout)[1]

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend.read_all`. A prefix that was asked for lately costs one request."""
        return self._link.caches.read_all(prefix, timeout)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """See `KeyValueBackend.put`. A condition that holds costs one request."""
        deadline = time.monotonic() + timeout
        link = self._link
        if lease is not None and not isinstance(lease, ZooKeeperLease):
            raise RendezvousParameterError(f"The lease {lease!r} is not of ZooKeeper; take one from open_lease.")
        possible = expect is ABSENT or expect is ANY or isinstance(expect, Version)
        if not possible or (lease is not None and lease.ended):
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=timeout))
        try:
            return self._writer.put(key, value, expect, link.session, link.of(lease) if lease else None, deadline)
        except ReplyLostError:
            return PutResult(PutOutcome.UNKNOWN)
        except SessionEndedError:
            if lease is not None:
                link.forget(lease)
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=deadline - time.monotonic()))

    def delete(self, prefix: str, *, timeout: float) -> None:
        """See `KeyValueBackend.delete`."""
        remove(self._layout, prefix, self._link.session, time.monotonic() + timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """See `KeyValueBackend.wait`. Waiting costs no request but a keep-alive now and then, a change one."""
        return self._link.caches.wait(prefix, since, timeout)

    def open_lease(self, ttl: float, *, timeout: float) -> "ZooKeeperLease":
        """See `KeyValueBackend.open_lease`. ZooKeeper grants times within its limits only.

        Raises:
            RendezvousParameterError: It grants less than `ttl`.
        """
        deadline = time.monotonic() + timeout
        link = self._link
        session = Session(link.ensemble, Identity(ttl))
        session.channel(deadline)
        identity = session.identity
        if identity.timeout < ttl:
            session.end(deadline)
            raise RendezvousParameterError(
                f"This ZooKeeper grants no lease of {ttl:.1f} s, but at most {identity.timeout:.1f} s. Keep leases "
                "shorter (keep_alive_interval x keep_alive_max_attempt), or raise the servers' maxSessionTimeout."
            )
        link.sessions[identity.number] = session
        return ZooKeeperLease(self, identity)

    def close(self) -> None:
        """See `KeyValueBackend.close`."""
        self._links.close()

    @property
    def _link(self) -> "_Link":
        return self._links.get()


class ZooKeeperLease(Lease):
    """A session that nothing but `keep_alive` and puts keep alive.

    It belongs to no connection and to no process: a client attaches to it.

    Attributes:
        identity: What ZooKeeper knows the session by.
        ended: It has ended for good, as far as this process knows.
    """

    def __init__(self, backend: ZooKeeperBackend, identity: Identity) -> None:
        """The session `identity` of `backend`'s ensemble."""
        self.identity = identity
        self.ended = False
        self._backend = backend
        self._kept = time.monotonic()

    @property
    def ttl(self) -> float:
        """See `Lease.ttl`."""
        return self.identity.timeout

    def keep_alive(self, timeout: float) -> bool:
        """See `Lease.keep_alive`."""
        link, began = self._backend._link, time.monotonic()
        if not self.ended:
            session = link.of(self)
            if began - self._kept > self.ttl * 2 / 3:
                # A follower tells the leader of keep-alives up to half a tick late (a quarter of the shortest time to
                # live), too late for a session that is about to end; of a new connection it tells at once.
                session.disconnect()
            try:
                # The leader answers it, and knows which sessions live.
                session.call([Sync("/")], began + timeout)
                self._kept = began
            except SessionEndedError:
                link.forget(self)
        return not self.ended

    def revoke(self, timeout: float) -> None:
        """See `Lease.revoke`."""
        link = self._backend._link
        if not self.ended:
            link.of(self).end(time.monotonic() + timeout)
            link.forget(self)


class _Link:
    """What one process has of ZooKeeper: a session for reading and watching, and one for each lease."""

    def __init__(self, ensemble: Ensemble, layout: Layout) -> None:
        self.ensemble = ensemble
        self.caches = PrefixCaches(ensemble, layout)
        self.session = self.caches.session
        self.sessions: dict[int, Session] = {}

    def of(self, lease: ZooKeeperLease) -> Session:
        """The session of a lease."""
        identity = lease.identity
        return self.sessions.setdefault(identity.number, Session(self.ensemble, identity))

    def forget(self, lease: ZooKeeperLease) -> None:
        """A lease has ended."""
        lease.ended = True
        session = self.sessions.pop(lease.identity.number, None)
        if session is not None:
            session.disconnect()

    def close(self) -> None:
        """End every connection. The sessions of leases live on until their time is up."""
        self.session.close_session()
        self.ensemble.close()
