"""ConsulServer and ConsulCluster, on a real Consul."""

import os
import ssl
import subprocess
import time
import urllib.error
from collections import Counter
from pathlib import Path

import pytest
import trustme

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.fixtures import served
from rdzv_conformance.servers import (
    ConsulClient,
    ConsulCluster,
    ConsulServer,
    ConsulTls,
    ServiceFailedError,
    ServiceMissingError,
    require_service,
)

from .lives import check_stop

server = served(ConsulServer, scope="function")


def test_a_servers_life(server: ConsulServer) -> None:
    assert server.get_host() == "127.0.0.1"
    assert server.get_endpoint() == f"127.0.0.1:{server.get_port()}"
    assert os.readlink(f"/proc/{server.pid}/exe").endswith("consul")
    client = server.get_client()
    client.put("a/x y", b"\0\xff")
    client.put("b", b"")
    assert (client.get("a/x y"), client.get("b"), client.get("c")) == (b"\0\xff", b"", None)
    assert (client.keys(), client.keys("a"), client.keys("c")) == (["a/x y", "b"], ["a/x y"], [])
    client.delete("a/x y")
    assert client.keys("a") == []
    with pytest.raises(RuntimeError, match="was started already"):
        server.start()
    server.kill()
    with pytest.raises(OSError, match="refused"):
        client.get("b")
    server.restart()
    assert client.get("b") == b""
    server.terminate()
    assert not server.is_running()
    server.restart()
    assert client.get("b") == b""
    server.pause()
    with pytest.raises(TimeoutError):
        ConsulClient(f"http://{server.get_endpoint()}", timeout=0.2).get("b")
    server.resume()
    assert client.get("b") == b""
    check_stop(server)


def test_calls_are_counted(server: ConsulServer) -> None:
    client = server.get_client()
    before, begun = server.calls(), server.queries_begun()
    for _ in range(3):
        client.get("a")
    client.put("a", b"")
    client.call("PUT", "txn", [{"KV": {"Verb": "set", "Key": "b", "Value": ""}}])
    # Whether it is ready was asked in the same words, and may be counted only now.
    assert (server.calls() - before) - Counter({"GET kv": 3, "PUT kv": 1, "PUT txn": 1}) <= Counter({"GET kv": 1})
    assert server.calls() - before >= Counter({"GET kv": 3, "PUT kv": 1, "PUT txn": 1})
    assert server.queries_begun() - begun >= 3
    assert server.is_leader()


def test_calls_are_read_from_old_and_new_names(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "consul_http_GET_v1_kv__count 3\nconsul_http_GET_v1_status_leader_count 9\n"
    new = 'consul_api_http_count{method="PUT",path="v1_txn"} 2\nconsul_api_http_sum{method="PUT",path="v1_txn"} 7\n'
    monkeypatch.setattr(ConsulServer, "_metrics", lambda self: old + new)
    assert ConsulServer().calls() == {"GET kv": 3, "PUT txn": 2}


def test_foreign_settings_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_service(ConsulServer)
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "foreign")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with ConsulServer(tmp_path / "mine") as server:
        server.get_client().put("a", b"1")
    assert (tmp_path / "mine" / "settings.json").exists(), "the user's folder was removed"


def test_failure_shows_the_log_and_leaves_nothing() -> None:
    require_service(ConsulServer)
    server = ConsulServer(settings={"no_such_setting": 1})
    with pytest.raises(ServiceFailedError, match=r"exit code 1(?s:.*)no_such_setting"):
        server.start(num_retries=1)
    assert not server.is_running()
    assert server._folder is None


def test_tokens_and_certificates(tmp_path: Path) -> None:
    require_service(ConsulServer)
    tls = _certificates(tmp_path)
    with ConsulServer(tls=tls, settings={"acl": {"enabled": True, "default_policy": "deny"}}) as server:
        url = f"https://{server.get_endpoint()}"
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            server.get_client().get("a")
        refused.value.close()
        assert server.bootstrap_acl() == server.token
        server.get_client().put("a", b"1")
        assert server.get_client().get("a") == b"1"
        assert server.calls()["PUT kv"] == 1
        without = ssl.create_default_context(cafile=str(tls.ca))
        with pytest.raises(OSError, match=r"SSL|reset"):
            ConsulClient(url, without, token=server.token).get("a")


def test_cluster_survives_its_leaders_death_and_takes_it_back() -> None:
    require_service(ConsulServer)
    with ConsulCluster(3) as cluster:
        assert len(set(cluster.endpoints)) == 3
        assert cluster.get_endpoint() == ",".join(cluster.endpoints)
        first = cluster.leader()
        first.get_client().put("a", b"1")
        first.kill()
        second = cluster.leader()
        assert second is not first
        eventually(lambda: _reads(second, "a", b"1"), "the new leader to serve")
        first.restart()
        eventually(lambda: _reads(first, "a", b"1"), "the old leader to serve again")
        third = cluster.leader()
        third.pause()
        eventually(lambda: any(member.is_leader() for member in cluster.members if member is not third), "another")
        for member in cluster.members[:2]:
            member.kill()
        eventually(lambda: not cluster.members[2].is_leader(), "the last member to lead no more")
        with pytest.raises(TimeoutError, match="1 of 3 members run"):
            cluster.leader(timeout=0.2)
        cluster.heal()
        assert cluster.leader() in cluster.members
        assert sum(cluster.calls().values()) >= 1
        pids = [member.pid for member in cluster.members]
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the members to end")


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDZV_CONSUL_BINARY", str(tmp_path / "consul"))
    with pytest.raises(ServiceMissingError, match=r"RDZV_CONSUL_BINARY names '.*consul', which is not a program"):
        ConsulServer().start()
    monkeypatch.delenv("RDZV_CONSUL_BINARY")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServiceMissingError, match=r"No Consul on this machine.*RDZV_CONSUL_BINARY"):
        ConsulServer.find_binary()


def test_log_goes_to_the_given_file(tmp_path: Path) -> None:
    require_service(ConsulServer)
    with (tmp_path / "log").open("w") as log:
        server = ConsulServer()
        server.start(stderr=log)
        server.stop()
    assert "Consul agent running" in (tmp_path / "log").read_text()
    server.start(stderr=subprocess.DEVNULL)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5


def _reads(server: ConsulServer, key: str, value: bytes) -> bool:
    try:
        return server.get_client().get(key) == value
    except OSError:
        return False


def _certificates(folder: Path) -> ConsulTls:
    authority = trustme.CA()
    for name in ("server", "client"):
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server, client = folder / "server.pem", folder / "client.pem"
    return ConsulTls(server, server, folder / "ca.pem", client, client)
