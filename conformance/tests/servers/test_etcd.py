"""What etcd servers have that others have not; the rest is in `test_lives`."""

import ssl
import urllib.error
from pathlib import Path

import pytest
import trustme

from rdzv_conformance.fixtures import served
from rdzv_conformance.servers import EtcdClient, EtcdServer, EtcdTls, ServiceFailedError, require_service


@pytest.fixture(autouse=True)
def etcd() -> None:
    require_service(EtcdServer)


server = served(EtcdServer, scope="function")


def test_a_round_trip(server: EtcdServer) -> None:
    client = server.get_client()
    client.put("/a/x", b"\0\xff")
    client.put("/b", b"")
    assert client.get("/a/x") == b"\0\xff"
    assert client.get("/b") == b""
    assert client.get("/c") is None
    assert client.keys() == ["/a/x", "/b"]
    assert client.keys("/a") == ["/a/x"]
    client.delete("/a/x")
    assert client.keys("/a") == []


def test_the_v2_api_is_served_where_it_is_asked_for(server: EtcdServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        server.get_client().get_text("/v2/keys/")
    with EtcdServer(enable_v2=True) as older:
        before = older.calls()
        assert '"dir":true' in older.get_client().get_text("/v2/keys/")
        assert older.calls() - before == {"v2 GET": 1}
        older.get_client().put("a", b"1")
        assert older.get_client().get("a") == b"1"


def test_calls_are_counted_by_method(server: EtcdServer) -> None:
    client = server.get_client()
    before = server.calls()
    for _ in range(3):
        client.get("a")
    client.put("a", b"")
    assert server.calls() - before == {"Range": 3, "Put": 1}


def test_foreign_settings_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_NAME", "foreign")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with EtcdServer() as server:
        server.get_client().put("a", b"")


def test_server_that_is_never_ready_is_a_timeout_and_is_stopped() -> None:
    server = EtcdServer(extra_args=["--initial-cluster=default=http://127.0.0.1:1,other=http://127.0.0.1:2"])
    with pytest.raises((TimeoutError, ServiceFailedError)):
        server.start(timeout=0.5, num_retries=1)
    assert not server.is_running()


def test_servers_stand_side_by_side(server: EtcdServer) -> None:
    with EtcdServer() as other:
        server.get_client().put("a", b"1")
        assert other.get_client().get("a") is None


@pytest.fixture
def certificates(tmp_path: Path) -> EtcdTls:
    authority = trustme.CA()
    for name in ("server", "client"):
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server, client = tmp_path / "server.pem", tmp_path / "client.pem"
    return EtcdTls(server, server, tmp_path / "ca.pem", client, client)


def test_tls_with_client_certificates(certificates: EtcdTls) -> None:
    with EtcdServer(tls=certificates) as server:
        server.get_client().put("a", b"1")
        assert server.get_client().get("a") == b"1"
        assert server.calls() == {"Put": 1, "Range": 1}
        without = ssl.create_default_context(cafile=str(certificates.ca))
        with pytest.raises(OSError, match=r"SSL|reset"):
            EtcdClient(f"https://{server.get_endpoint()}", without).get("a")


def test_tls_without_client_certificates(certificates: EtcdTls) -> None:
    with EtcdServer(tls=EtcdTls(certificates.cert, certificates.key, certificates.ca)) as server:
        server.get_client().put("a", b"1")
        with pytest.raises(OSError, match="certificate verify failed"):
            EtcdClient(f"https://{server.get_endpoint()}", ssl.create_default_context()).get("a")
