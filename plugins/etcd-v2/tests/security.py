"""Certificates and users for the tests."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import trustme
from rdzv_conformance.servers import EtcdServer, EtcdTls


class Certificates:
    """An authority, what it signed for a server and a client, and an authority that signed neither."""

    def __init__(self, folder: Path) -> None:
        self.ca, authority = self._authority(folder / "ca.pem")
        self.server = self._issue(authority, folder / "server.pem", "127.0.0.1")
        self.client = self._issue(authority, folder / "client.pem", "client.test")
        self.foreign_ca, foreign = self._authority(folder / "foreign.pem")
        self.foreign_client = self._issue(foreign, folder / "foreign-client.pem", "client.test")

    def etcd(self) -> EtcdServer:
        """A server that shows its certificate and demands the client's."""
        tls = EtcdTls(self.server, self.server, self.ca, self.client, self.client)
        return EtcdServer(tls=tls, enable_v2=True)

    @staticmethod
    def _authority(path: Path) -> tuple[Path, trustme.CA]:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(path))
        return path, authority

    @staticmethod
    def _issue(authority: trustme.CA, path: Path, name: str) -> Path:
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path


def demand_login(server: EtcdServer) -> None:
    """Create ``writer`` and ``reader``, who may do so under ``/rdzv/``, and ``stranger``, who may do nothing."""
    everything, runs = {"read": ["/*"], "write": ["/*"]}, ["/rdzv/*"]
    _put(server, "users/root", {"user": "root", "password": "toor"})
    for user, password, rights in (
        ("writer", "secret", {"read": runs, "write": runs}),
        ("reader", "secret", {"read": runs, "write": []}),
        ("stranger", "hi", {"read": [], "write": []}),
    ):
        _put(server, f"roles/{user}", {"role": user, "permissions": {"kv": rights}})
        _put(server, f"users/{user}", {"user": user, "password": password, "roles": [user]})
    _put(server, "enable", None)
    # Whoever does not log in is a guest, who may do everything at first.
    _put(server, "roles/guest", {"role": "guest", "revoke": {"kv": everything}}, "Basic cm9vdDp0b29y")


def _put(server: EtcdServer, path: str, body: Any, login: str = "") -> None:
    scheme = "https" if server.tls else "http"
    request = urllib.request.Request(
        f"{scheme}://{server.get_endpoint()}/v2/auth/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": login},
        method="PUT",
    )
    context = server.tls.client_context() if server.tls else None
    urllib.request.urlopen(request, context=context, timeout=10).close()
