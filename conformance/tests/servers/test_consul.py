"""What Consul servers have that others have not; the rest is in `test_lives`."""

import ssl
import urllib.error
from collections import Counter
from pathlib import Path

import pytest
import trustme

from rdzv_conformance.fixtures import served
from rdzv_conformance.servers import ConsulClient, ConsulServer, ConsulTls, ServiceMissingError, require_service

server = served(ConsulServer, scope="function")


def test_a_round_trip(server: ConsulServer) -> None:
    client = server.get_client()
    client.put("a/x y", b"\0\xff")
    client.put("b", b"")
    assert (client.get("a/x y"), client.get("b"), client.get("c")) == (b"\0\xff", b"", None)
    assert (client.keys(), client.keys("a"), client.keys("c")) == (["a/x y", "b"], ["a/x y"], [])
    client.delete("a/x y")
    assert client.keys("a") == []


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


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDZV_CONSUL_BINARY", str(tmp_path / "consul"))
    with pytest.raises(ServiceMissingError, match=r"RDZV_CONSUL_BINARY names '.*consul', which is not a program"):
        ConsulServer().start()
    monkeypatch.delenv("RDZV_CONSUL_BINARY")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServiceMissingError, match=r"No Consul on this machine.*RDZV_CONSUL_BINARY"):
        ConsulServer.find_binary()


def _certificates(folder: Path) -> ConsulTls:
    authority = trustme.CA()
    for name in ("server", "client"):
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server, client = folder / "server.pem", folder / "client.pem"
    return ConsulTls(server, server, folder / "ca.pem", client, client)
