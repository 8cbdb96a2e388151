"""Real etcd servers: they start, stop, crash, freeze, come back, and leave nothing."""

import os
import ssl
import subprocess
import time
import urllib.error
from pathlib import Path

import pytest
import trustme

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.fixtures import served
from rdzv_conformance.servers import EtcdClient, EtcdCluster, EtcdServer, EtcdTls, ServiceFailedError, require_service

from .lives import check_stop


@pytest.fixture(autouse=True)
def etcd() -> None:
    require_service(EtcdServer)


server = served(EtcdServer, scope="function")


def test_pytorch_names_and_a_round_trip(server: EtcdServer) -> None:
    assert server.get_host() == "127.0.0.1"
    assert server.get_endpoint() == f"127.0.0.1:{server.get_port()}"
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


def test_the_pid_is_etcds_own(server: EtcdServer) -> None:
    assert os.readlink(f"/proc/{server.pid}/exe").endswith("etcd")


def test_stop_leaves_nothing_and_a_new_start_is_new(server: EtcdServer) -> None:
    server.get_client().put("a", b"1")
    check_stop(server)
    server.start()
    assert server.get_client().get("a") is None


def test_the_v2_api_is_served_where_it_is_asked_for(server: EtcdServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        server.get_client().get_text("/v2/keys/")
    with EtcdServer(enable_v2=True) as older:
        before = older.calls()
        assert '"dir":true' in older.get_client().get_text("/v2/keys/")
        assert older.calls() - before == {"v2 GET": 1}
        older.get_client().put("a", b"1")
        assert older.get_client().get("a") == b"1"


def test_data_dir_of_the_user_is_kept(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "mine") as server:
        server.get_client().put("a", b"1")
    with EtcdServer(str(tmp_path / "mine")) as server:
        assert server.get_client().get("a") == b"1"


def test_crash_and_restart_keep_port_and_data(server: EtcdServer) -> None:
    client = server.get_client()
    client.put("a", b"1")
    server.kill()
    assert not server.is_running()
    with pytest.raises(OSError, match="refused"):
        client.get("a")
    server.restart()
    assert client.get("a") == b"1"
    server.terminate()
    assert not server.is_running()
    server.restart()
    assert client.get("a") == b"1"


def test_paused_server_answers_nothing_until_resumed(server: EtcdServer) -> None:
    server.get_client().put("a", b"1")
    impatient = EtcdClient(f"http://{server.get_endpoint()}", timeout=0.2)
    server.pause()
    with pytest.raises(TimeoutError):
        impatient.get("a")
    assert server.is_running()
    server.resume()
    assert server.get_client().get("a") == b"1"


def test_paused_server_can_be_stopped(server: EtcdServer) -> None:
    server.pause()
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5


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


def test_failure_shows_the_end_of_the_log_and_leaves_nothing() -> None:
    server = EtcdServer(extra_args=["--no-such-flag"])
    with pytest.raises(ServiceFailedError, match=r"exit code 2(?s:.*)no-such-flag"):
        server.start(num_retries=1)
    assert not server.is_running()
    assert server._folder is None


def test_server_that_is_never_ready_is_a_timeout_and_is_stopped() -> None:
    server = EtcdServer(extra_args=["--initial-cluster=default=http://127.0.0.1:1,other=http://127.0.0.1:2"])
    with pytest.raises((TimeoutError, ServiceFailedError)):
        server.start(timeout=0.5, num_retries=1)
    assert not server.is_running()


def test_log_goes_to_the_given_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        server = EtcdServer()
        server.start(stderr=log)
        server.stop()
        server.start(stderr=subprocess.DEVNULL)
        server.stop()
    assert "ready to serve client requests" in (tmp_path / "log").read_text()


def test_misuse_is_reported(server: EtcdServer) -> None:
    with pytest.raises(RuntimeError, match="was started already"):
        server.start()
    with pytest.raises(RuntimeError, match="Call `start` first"):
        EtcdServer().kill()


def test_servers_stand_side_by_side(server: EtcdServer) -> None:
    with EtcdServer() as other:
        server.get_client().put("a", b"1")
        assert other.get_client().get("a") is None


def test_cluster_survives_its_leaders_death_and_takes_it_back() -> None:
    with EtcdCluster(3) as cluster:
        assert len(set(cluster.endpoints)) == 3
        assert cluster.get_endpoint() == ",".join(cluster.endpoints)
        first = cluster.leader()
        first.get_client().put("a", b"1")
        first.kill()
        second = cluster.leader()
        assert second is not first
        assert second.get_client().get("a") == b"1"
        assert sum(cluster.calls().values()) >= 1
        second.get_client().put("a", b"2")
        first.restart()
        assert first.get_client().get("a") == b"2"
        pids = [member.pid for member in cluster.members]
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the members to end")


def test_cluster_elects_another_leader_when_its_leader_freezes() -> None:
    with EtcdCluster(3) as cluster:
        frozen = cluster.leader()
        frozen.pause()
        assert cluster.leader() is not frozen
        frozen.resume()
        assert cluster.leader(timeout=30) in cluster.members


def test_cluster_without_majority_has_no_leader() -> None:
    with EtcdCluster(3) as cluster:
        for member in cluster.members[:2]:
            member.kill()
        # A leader steps down once it has not heard of a majority for an election timeout (1 s).
        eventually(lambda: not cluster.members[2].is_leader(), "the last member to lead no more")
        with pytest.raises(TimeoutError, match="1 of 3 members run"):
            cluster.leader(timeout=0.2)
        for member in cluster.members[:2]:
            member.relaunch()
        assert cluster.leader() in cluster.members


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
