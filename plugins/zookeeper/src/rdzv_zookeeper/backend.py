"""rdzv's contract on ZooKeeper."""

import ssl
import time
from collections.abc import Sequence

from kazoo.protocol.serialization import Sync  # type: ignore[import-untyped]
from rdzv_core.backend import ABSENT, ANY, Capability, Expect, Lease, PutOutcome, PutResult, Token
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousParameterError
from rdzv_transport import FailoverClient, NetworkBackend, Present, ReplyLostError

from .cache import PrefixCaches
from .failures import SessionEndedError
from .folders import Folders
from .layout import Layout, Version
from .security import Login, parse_acl
from .session import Identity, Session
from .writing import Writer


class ZooKeeperBackend(NetworkBackend[PrefixCaches]):
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
        tls: Present[ssl.SSLContext] | None = None,
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
        folders = Folders()
        self._writer = Writer(self._layout, parse_acl(acl, login), folders)

        def link() -> PrefixCaches:
            client = FailoverClient(
                "ZooKeeper",
                endpoints,
                tls=tls,
                server_name=server_name,
                request_timeout=request_timeout,
                scheme="",
                without_tls="tls=false, or give its secureClientPort",
                # That of a lease. (A server ends one over which no session begins after ten seconds.)
                early=1,
            )
            return PrefixCaches(client, login, self._layout, folders)

        super().__init__(link, self._layout.root)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """See `KeyValueBackend.put`. A condition that holds costs one request."""
        deadline = time.monotonic() + timeout
        if lease is not None and not isinstance(lease, ZooKeeperLease):
            raise RendezvousParameterError(f"The lease {lease!r} is not of ZooKeeper; take one from open_lease.")
        possible = expect is ABSENT or expect is ANY or isinstance(expect, Version)
        if not possible or (lease is not None and lease.ended):
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=timeout))
        try:
            session = lease.attached() if lease else None
            return self._writer.put(key, value, expect, self.link.session, session, deadline)
        except ReplyLostError:
            return PutResult(PutOutcome.UNKNOWN)
        except SessionEndedError:
            if lease is not None:
                lease.forget()
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=deadline - time.monotonic()))

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        deadline = time.monotonic() + timeout
        if not isinstance(token, Version):
            return PutOutcome.CONFLICT
        try:
            removed = self._writer.delete_version(key, token, self.link.session, deadline)
        except ReplyLostError:
            return PutOutcome.UNKNOWN
        return PutOutcome.APPLIED if removed else PutOutcome.CONFLICT

    def open_lease(self, ttl: float, *, timeout: float) -> "ZooKeeperLease":
        """See `KeyValueBackend.open_lease`. ZooKeeper grants times within its limits only.

        Raises:
            RendezvousParameterError: It grants less than `ttl`.
        """
        deadline = time.monotonic() + timeout
        shared = self.link.session
        session = Session(shared.client, shared.login, Identity(ttl))
        session.channel(deadline)
        if (granted := session.identity.timeout) < ttl:
            session.end(deadline)
            raise RendezvousParameterError(
                f"This ZooKeeper grants no lease of {ttl:.1f} s, but at most {granted:.1f} s. Keep leases "
                "shorter (keep_alive_interval x keep_alive_max_attempt), or raise the servers' maxSessionTimeout."
            )
        return ZooKeeperLease(self, session)


class ZooKeeperLease(Lease):
    """A session that nothing but `keep_alive` and puts keep alive.

    Attributes:
        ended: It has ended for good, as far as this process knows.
    """

    def __init__(self, backend: ZooKeeperBackend, session: Session) -> None:
        """A lease of `backend`, by a session of its own."""
        self.ended = False
        self._backend = backend
        self._session = session
        self._kept = time.monotonic()

    @property
    def ttl(self) -> float:
        return self._session.identity.timeout

    def keep_alive(self, timeout: float) -> bool:
        session, began = self.attached(), time.monotonic()
        if not self.ended:
            if began - self._kept > self.ttl * 2 / 3:
                # A follower tells the leader of keep-alives up to half a tick late (a quarter of the shortest time to
                # live), too late for a session that is about to end; of a new connection it tells at once.
                session.disconnect()
            try:
                # The leader answers it, and knows which sessions live.
                session.call([Sync("/")], began + timeout)
                self._kept = began
            except SessionEndedError:
                self.forget()
        return not self.ended

    def revoke(self, timeout: float) -> None:
        session = self.attached()
        if not self.ended:
            session.end(time.monotonic() + timeout)
            self.forget()

    def attached(self) -> Session:
        """The session as this process uses it: it belongs to no process, and a forked child attaches to it anew."""
        shared = self._backend.link.session
        if self._session.client is not shared.client:
            self._session = Session(shared.client, shared.login, self._session.identity)
        return self._session

    def forget(self) -> None:
        """The session has ended."""
        self.ended = True
        self._session.disconnect()
