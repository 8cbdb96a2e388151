"""TLS, logging in and ACLs: what must work works, and what is refused says at once what was refused and why."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rdzv.backend import ABSENT, ANY, KeyValueBackend, Outcome, Snapshot
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousParameterError
from rdzv.parameters import RendezvousParameters
from rdzv_conformance.servers import ZooKeeperServer, require_service

from rdzv_zookeeper import create_backend

from .clients import CALL
from .security import SASL_USERS, Certificates

Create = Callable[..., KeyValueBackend]


@pytest.fixture
def create() -> Iterator[Create]:
    """Makes backends by options, as a user does, and closes them in the end."""
    made: list[KeyValueBackend] = []

    def create(endpoint: str, run_id: str = "run", **options: Any) -> KeyValueBackend:
        backend, _ = create_backend(RendezvousParameters("zookeeper", endpoint, run_id, 1, 1, **options))
        assert isinstance(backend, KeyValueBackend)
        made.append(backend)
        return backend

    yield create
    for backend in made:
        backend.close()


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    require_service(ZooKeeperServer)
    users = tmp_path_factory.mktemp("sasl") / "users.conf"
    users.write_text(SASL_USERS)
    settings = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    java_options = [f"-Djava.security.auth.login.config={users}"]
    with ZooKeeperServer(settings=settings, java_options=java_options) as server:
        yield server


def _everything(backend: KeyValueBackend) -> None:
    """Everything that a backend can do."""
    since = backend.read_all("all", timeout=CALL)
    lease = backend.open_lease(5, timeout=CALL)
    put = backend.put("all/leased", b"x" * 300_000, expect=ABSENT, lease=lease, timeout=CALL)
    assert put.outcome is Outcome.WON
    assert backend.wait("all", since, timeout=CALL).entries == {"all/leased": put.entry}
    assert backend.put("all/free", b"", expect=ABSENT, timeout=CALL).outcome is Outcome.WON
    assert lease.keep_alive(CALL)
    assert backend.local_address == "127.0.0.1"
    lease.revoke(CALL)
    assert backend.read_all("all", timeout=CALL).entries.keys() == {"all/free"}
    backend.delete("all", timeout=CALL)
    assert backend.read("all/free", timeout=CALL) is None


def _do(backend: KeyValueBackend, call: str) -> object:
    if call == "read":
        return backend.read("key", timeout=CALL)
    if call == "put":
        return backend.put("key", b"x", expect=ANY, timeout=CALL)
    if call == "delete":
        return backend.delete("key", timeout=CALL)
    if call == "lease":
        lease = backend.open_lease(5, timeout=CALL)
        return backend.put("key", b"x", expect=ANY, lease=lease, timeout=CALL)
    return backend.wait("key", Snapshot(), timeout=CALL)


class TestTls:
    """A server that shows its certificate, and demands one."""

    @pytest.mark.parametrize("acl", [None, "creator"], ids=["open", "by certificate"])
    def test_both_ends_show_their_certificates(
        self, tls_server: ZooKeeperServer, certificates: Certificates, create: Create, acl: str | None
    ) -> None:
        options = {"ca_cert": certificates.ca, "cert": certificates.client, "acl": acl}
        _everything(create(tls_server.get_endpoint(), run_id=str(acl), **options))

    def test_the_name_in_the_certificate_can_be_given(
        self, tls_server: ZooKeeperServer, certificates: Certificates, create: Create
    ) -> None:
        options = {"ca_cert": certificates.ca, "cert": certificates.client}
        endpoint = f"localhost:{tls_server.get_port()}"
        with pytest.raises(RendezvousDeniedError, match=r"localhost.*cannot be trusted.*server_name"):
            create(endpoint, **options).read("key", timeout=CALL)
        assert create(endpoint, **options, server_name="127.0.0.1").read("key", timeout=CALL) is None

    @pytest.mark.parametrize("call", ["read", "put", "wait", "lease"])
    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({"ca_cert": "foreign_ca", "cert": "client"}, "cannot be trusted: .*[a-z]; check ca_cert"),
            ({"ca_cert": "ca"}, "refused this client's certificate.*cert"),
            ({"ca_cert": "ca", "cert": "foreign_client"}, "refused this client's certificate.*cert"),
        ],
        ids=["wrong authority", "no certificate", "wrong certificate"],
    )
    def test_what_is_refused_says_why(
        self,
        tls_server: ZooKeeperServer,
        certificates: Certificates,
        create: Create,
        options: dict[str, str],
        complaint: str,
        call: str,
    ) -> None:
        files = {name: getattr(certificates, file) for name, file in options.items()}
        backend = create(tls_server.get_endpoint(), **files)
        began = time.monotonic()
        with pytest.raises(RendezvousDeniedError, match=complaint):
            _do(backend, call)
        assert time.monotonic() - began < 3

    def test_one_end_without_tls(
        self, tls_server: ZooKeeperServer, shared_zookeeper: ZooKeeperServer, create: Create
    ) -> None:
        """Neither end can tell it from a server that crashes, but the message can name it."""
        with pytest.raises(RendezvousConnectionError, match=r"tls=false"):
            create(shared_zookeeper.get_endpoint(), tls=True).read("key", timeout=CALL)
        with pytest.raises(RendezvousConnectionError, match=r"tls=true|our option tls"):
            create(tls_server.get_endpoint()).read("key", timeout=CALL)


class TestDigest:
    """ZooKeeper's own scheme checks no password; but what one user has made, no other one may touch."""

    def test_the_owner_may_do_everything(self, shared_zookeeper: ZooKeeperServer, create: Create) -> None:
        options = {"user": "me", "password": "secret", "prefix": "mine/everything"}
        _everything(create(shared_zookeeper.get_endpoint(), **options))

    @pytest.mark.parametrize("call", ["read", "put", "wait", "lease", "delete"])
    @pytest.mark.parametrize(
        ("options", "who"),
        [({"user": "me", "password": "wrong"}, "the user 'me'"), ({}, "without user and password")],
        ids=["wrong password", "nobody"],
    )
    def test_others_are_told_at_once(
        self, shared_zookeeper: ZooKeeperServer, create: Create, options: dict[str, str], who: str, call: str
    ) -> None:
        owner = create(shared_zookeeper.get_endpoint(), user="me", password="secret", prefix="mine/alone")
        owner.put("key", b"x", expect=ANY, timeout=CALL)
        backend = create(shared_zookeeper.get_endpoint(), **options, prefix="mine/alone")
        began = time.monotonic()
        with pytest.raises(RendezvousDeniedError, match=f"{who}.*/mine/alone/run.*NoAuth.*acl") as refused:
            _do(backend, call)
        assert time.monotonic() - began < 2
        assert "wrong" not in str(refused.value)
        entry = owner.read("key", timeout=CALL)
        assert entry is not None
        assert entry.value == b"x"

    def test_an_acl_can_let_others_read(self, shared_zookeeper: ZooKeeperServer, create: Create) -> None:
        options = {"user": "me", "password": "secret", "acl": "auth::rwcda; world:anyone:r"}
        owner = create(shared_zookeeper.get_endpoint(), **options, prefix="shared")
        put = owner.put("key", b"x", expect=ANY, timeout=CALL)
        other = create(shared_zookeeper.get_endpoint(), prefix="shared")
        assert other.read("key", timeout=CALL) == put.entry
        assert other.read_all("key", timeout=CALL).entries == {"key": put.entry}
        with pytest.raises(RendezvousDeniedError):
            other.put("key", b"y", expect=ANY, timeout=CALL)

    def test_a_run_under_nodes_that_we_may_not_make(self, shared_zookeeper: ZooKeeperServer, create: Create) -> None:
        """An administrator made the prefix for us, and lets nobody make anything beside it."""
        top = create(shared_zookeeper.get_endpoint(), "x", user="admin", password="a", prefix="locked", acl="creator")
        top.put("key", b"x", expect=ANY, timeout=CALL)
        acl = "auth::rwcda;world:anyone:rc"
        admin = create(shared_zookeeper.get_endpoint(), "x", user="admin", password="a", prefix="locked/open", acl=acl)
        admin.put("key", b"x", expect=ANY, timeout=CALL)
        _everything(create(shared_zookeeper.get_endpoint(), "mine", prefix="locked/open"))
        with pytest.raises(RendezvousDeniedError, match="/locked/mine"):
            create(shared_zookeeper.get_endpoint(), "mine", prefix="locked").put("key", b"", expect=ANY, timeout=CALL)

    def test_a_creator_without_a_name_is_refused(self, shared_zookeeper: ZooKeeperServer, create: Create) -> None:
        backend = create(shared_zookeeper.get_endpoint(), prefix="nameless", acl="creator")
        with pytest.raises(RendezvousDeniedError, match="InvalidACL"):
            backend.put("key", b"x", expect=ANY, timeout=CALL)


class TestSasl:
    """A server that serves nobody who has not logged in."""

    def test_a_user_with_the_right_password(self, sasl_server: ZooKeeperServer, create: Create) -> None:
        options = {"sasl": "DIGEST-MD5", "user": "rdzv", "password": "secret"}
        _everything(create(sasl_server.get_endpoint(), **options))

    @pytest.mark.parametrize("call", ["read", "put", "wait", "lease"])
    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({"sasl": "DIGEST-MD5", "user": "rdzv", "password": "wrong"}, "'rdzv'"),
            ({"sasl": "DIGEST-MD5", "user": "nobody", "password": "secret"}, "'nobody'"),
            ({"sasl": "DIGEST-MD5", "user": "stranger", "password": "hi"}, "'stranger'.*NoAuth"),
            ({}, "without user and password.*SessionClosedRequireSasl"),
        ],
        ids=["wrong password", "unknown user", "no permission", "nobody"],
    )
    def test_who_may_not_is_told_at_once(
        self, sasl_server: ZooKeeperServer, create: Create, options: dict[str, str], complaint: str, call: str
    ) -> None:
        owner = create(sasl_server.get_endpoint(), sasl="DIGEST-MD5", user="rdzv", password="secret")
        owner.put("key", b"x", expect=ANY, timeout=CALL)
        backend = create(sasl_server.get_endpoint(), **options)
        began = time.monotonic()
        with pytest.raises(RendezvousDeniedError, match=complaint) as refused:
            _do(backend, call)
        assert time.monotonic() - began < 2
        assert "wrong" not in str(refused.value)

    def test_a_server_that_knows_no_sasl_is_doubted(self, shared_zookeeper: ZooKeeperServer, create: Create) -> None:
        options = {"sasl": "DIGEST-MD5", "user": "rdzv", "password": "secret"}
        with pytest.raises(RendezvousConnectionError, match="a login by DIGEST-MD5; does this server know SASL"):
            create(shared_zookeeper.get_endpoint(), **options).read("key", timeout=1)

    def test_a_server_that_restarts_is_logged_in_to_again(self, sasl_server: ZooKeeperServer, create: Create) -> None:
        backend = create(sasl_server.get_endpoint(), sasl="DIGEST-MD5", user="rdzv", password="secret")
        lease = backend.open_lease(10, timeout=CALL)
        backend.put("again", b"x", expect=ANY, lease=lease, timeout=CALL)
        sasl_server.restart()
        assert lease.keep_alive(CALL)
        assert backend.read("again", timeout=CALL) is not None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"password": "secret"}, "'user' and 'password'"),
        ({"user": "a:b", "password": "secret"}, "colon"),
        ({"acl": "everyone"}, "everyone.*malformed"),
        ({"acl": "world:anyone:x"}, "malformed"),
        ({"acl": "world:anyone:"}, "malformed"),
    ],
)
def test_what_cannot_be_used_is_refused(create: Create, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=complaint):
        create("localhost", **options)
