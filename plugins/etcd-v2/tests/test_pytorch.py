"""What PyTorch has for etcd: a backend and a store that are given a client of python-etcd, a real one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import rdzv
from rdzv_conformance.meanwhile import in_background
from rdzv_conformance.servers import EtcdCluster, EtcdServer
from rdzv_conformance.servers.certificates import Certificates
from rdzv_core.errors import RendezvousParameterError, RendezvousStateError

from rdzv_etcd_v2 import EtcdRendezvousBackend, EtcdStore

from .clients import CALL, python_etcd, request
from .security import secure_etcd

MOMENT = timedelta(seconds=0.2)


def _client(server: EtcdServer, **options: Any) -> Any:
    return python_etcd.Client("127.0.0.1", server.get_port(), **options)


@pytest.fixture
def backend(shared_etcd: EtcdServer) -> Iterator[EtcdRendezvousBackend]:
    with closing(EtcdRendezvousBackend(_client(shared_etcd), "pytorch", "/torch/elastic/rendezvous")) as backend:
        yield backend


@pytest.fixture
def store(shared_etcd: EtcdServer) -> Iterator[EtcdStore]:
    with closing(EtcdStore(_client(shared_etcd), "/torch/elastic/store", timedelta(seconds=5))) as store:
        yield store


def test_what_pytorchs_own_has_left_is_corrupt_state(shared_etcd: EtcdServer) -> None:
    """Its state of a run is one plain key, where ours has a directory."""
    request(shared_etcd, "PUT", "/torch/elastic/rendezvous/leftover", value="gASVCgAAAAAAAACMBnN0YXRllC4=")
    with closing(EtcdRendezvousBackend(_client(shared_etcd), "leftover", "/torch/elastic/rendezvous")) as backend:
        with pytest.raises(RendezvousStateError, match=r"PyTorch.*rm /torch/elastic/rendezvous/leftover"):
            backend.get_state()
        with pytest.raises(RendezvousStateError, match=r"PyTorch"):
            backend.set_state(b"x")


def test_a_register_with_a_fencing_token(shared_etcd: EtcdServer, backend: EtcdRendezvousBackend) -> None:
    """The meanings of PyTorch's own test of its backends."""
    assert backend.name == "etcd-v2"
    assert backend.get_state() is None
    created = backend.set_state(b"x")
    assert created is not None
    state, token, won = created
    assert (state, won) == (b"x", True)
    assert backend.get_state() == (b"x", token)
    assert backend.set_state(b"y") == (b"x", token, False)
    assert backend.set_state(b"y", "not a token of etcd's") == (b"x", token, False)
    changed = backend.set_state(b"y", token)
    assert changed is not None
    assert changed[0] == b"y"
    assert changed[2] is True
    assert backend.set_state(b"z", token) == (b"y", changed[1], False)
    found = request(shared_etcd, "GET", "/torch/elastic/rendezvous/pytorch/control/state/:value")["node"]
    assert 7000 < found["ttl"] <= 7200
    backend.delete("control", timeout=CALL)
    assert backend.set_state(b"z", token) is None


def test_the_time_to_live_is_the_callers(shared_etcd: EtcdServer) -> None:
    with closing(EtcdRendezvousBackend(_client(shared_etcd), "short", ttl=50)) as backend:
        backend.set_state(b"x")
        assert 40 < request(shared_etcd, "GET", "/short/control/state/:value")["node"]["ttl"] <= 50
        backend.delete("control", timeout=CALL)


def test_two_nodes_meet_through_it(shared_etcd: EtcdServer) -> None:
    def join(_: int) -> tuple[int, int]:
        backend = EtcdRendezvousBackend(_client(shared_etcd), "meet", "/torch/elastic/rendezvous")
        with rdzv.DynamicRendezvousHandler.from_backend("meet", None, backend, 2, 2) as handler:
            info = handler.next_rendezvous()
            info.store.barrier("end", 2)
            return info.rank, info.world_size

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(join, range(2))) == [(0, 2), (1, 2)]


def test_a_client_of_several_members_with_a_certificate(certificates: Certificates) -> None:
    with secure_etcd(certificates) as server:
        files = {"cert": (str(certificates.client), str(certificates.client)), "ca_cert": str(certificates.ca)}
        hosts = (("127.0.0.1", 1), ("127.0.0.1", server.get_port()))
        client = python_etcd.Client(hosts, protocol="https", allow_reconnect=True, **files)
        with closing(EtcdRendezvousBackend(client, "tls")) as backend:
            assert backend.set_state(b"x")


def test_who_logs_in_is_asked_of_the_client(auth_etcd: EtcdServer) -> None:
    client = _client(auth_etcd, username="writer", password="secret")
    with closing(EtcdRendezvousBackend(client, "login", "rdzv")) as backend:
        assert backend.set_state(b"x")


@pytest.mark.parametrize("client", [None, "127.0.0.1:2379", object()])
def test_something_else_than_a_client_is_refused(client: object) -> None:
    with pytest.raises(RendezvousParameterError, match=r"no client of python-etcd.*create_backend"):
        EtcdRendezvousBackend(client, "run")


def test_the_run_id_must_not_be_empty(shared_etcd: EtcdServer) -> None:
    with pytest.raises(ValueError, match="run id"):
        EtcdRendezvousBackend(_client(shared_etcd), "")


def test_a_store_as_pytorchs(shared_etcd: EtcdServer, store: EtcdStore) -> None:
    store.set("key", "text")
    store.set(b"\xff".decode("latin-1"), b"\0\xff")
    assert store.get("key") == b"text"
    assert store.get("\xff") == b"\0\xff"
    assert store.add("count", 3) == 3
    assert store.add("count", -1) == 2
    assert store.get("count") == b"2"
    assert store.check(["key", "count"])
    assert not store.check(["key", "none"])
    store.wait(["key", "count"])
    assert store.compare_set("key", "text", "new") == b"new"
    with closing(EtcdStore(_client(shared_etcd), "/torch/elastic/store/")) as other:
        assert other.timeout == timedelta(seconds=300)
        assert other.get("key") == b"new"
        with in_background(lambda: other.get("later")) as got:
            store.set("later", "x")
            assert got.result(CALL) == b"x"


def test_a_wait_that_times_out_is_a_lookup_error(store: EtcdStore) -> None:
    with pytest.raises(LookupError, match="none"):
        store.wait(["none"], MOMENT)
    store.set_timeout(MOMENT)
    for vain in (lambda: store.get("none"), lambda: store.wait(["none"]), lambda: store.multi_get(["none"])):
        with pytest.raises(LookupError, match="none"):
            vain()
        with pytest.raises(rdzv.RendezvousTimeoutError):
            vain()


def test_a_cluster_client_knows_its_members() -> None:
    with EtcdCluster(2, enable_v2=True) as cluster:
        client = python_etcd.Client("127.0.0.1", cluster.members[0].get_port(), allow_reconnect=True)
        with closing(EtcdRendezvousBackend(client, "cluster")) as backend:
            assert backend.set_state(b"x")
            assert sorted(str(endpoint) for endpoint in backend.access.endpoints) == sorted(cluster.endpoints)
