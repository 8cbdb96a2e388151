"""ACLs, and ends that do not fit each other; the suite tries which clients are let in and refused (`security`)."""

import pytest
from rdzv_conformance.servers import ZooKeeperServer
from rdzv_conformance.users import Create
from rdzv_core.backend import ABSENT, ANY, KeyValueBackend, PutOutcome
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousParameterError

from .clients import CALL


def _everything(backend: KeyValueBackend) -> None:
    """Everything that a backend can do."""
    since = backend.read_all("all", timeout=CALL)
    lease = backend.open_lease(5, timeout=CALL)
    put = backend.put("all/leased", b"x" * 300_000, expect=ABSENT, lease=lease, timeout=CALL)
    assert put.outcome is PutOutcome.APPLIED
    assert backend.wait("all", since, timeout=CALL).entries == {"all/leased": put.entry}
    assert backend.put("all/free", b"", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
    assert lease.keep_alive(CALL)
    assert backend.local_address == "127.0.0.1"
    lease.revoke(CALL)
    assert backend.read_all("all", timeout=CALL).entries.keys() == {"all/free"}
    backend.delete("all", timeout=CALL)
    assert backend.read("all/free", timeout=CALL) is None


class TestTls:
    """A server that shows its certificate, and demands one."""

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
        """An administrator made the prefix for us, and lets no client make anything beside it."""
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
    """A server that serves no client that has not logged in."""

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
        ({"acl": "public"}, "public.*malformed"),
        ({"acl": "world:anyone:x"}, "malformed"),
        ({"acl": "world:anyone:"}, "malformed"),
    ],
)
def test_what_cannot_be_used_is_refused(create: Create, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=complaint):
        create("localhost", **options)
