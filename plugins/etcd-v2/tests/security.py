"""A server with certificates and users, for the tests."""

import json
import urllib.request
from typing import Any

from rdzv_conformance.servers import EtcdServer, EtcdTls
from rdzv_conformance.servers.certificates import Certificates


def secure_etcd(certificates: Certificates) -> EtcdServer:
    """A server that shows its certificate and demands the client's."""
    files = certificates.server, certificates.server, certificates.ca, certificates.client, certificates.client
    return EtcdServer(tls=EtcdTls(*files), enable_v2=True)


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
    # A client that does not log in is a guest, who may do everything at first.
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
