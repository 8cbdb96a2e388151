"""A small client of etcd's JSON gateway, to look behind a backend's back."""

import base64
import json
import ssl
import urllib.request
from typing import Any

__all__ = ["EtcdClient"]


class EtcdClient:
    """Talks to one etcd server over HTTP, with nothing but the standard library.

    Args:
        url: The server's address, such as ``http://127.0.0.1:2379``.
        tls: The context for an ``https`` address.
        timeout: Seconds that one call may take.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, timeout: float = 5) -> None:
        self._url = url
        self._timeout = timeout
        # No proxies: the server is on this machine, whatever the environment says.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def get_text(self, path: str) -> str:
        """What ``GET path`` answers, such as ``/metrics``.

        Raises:
            OSError: The server did not answer, or answered with an error (`urllib.error.HTTPError`).
        """
        with self._opener.open(f"{self._url}{path}", timeout=self._timeout) as answer:
            return str(answer.read().decode())

    def call(self, method: str, token: str | None = None, **body: Any) -> dict[str, Any]:
        """Call a method of etcd's v3 API, such as ``call("kv/range", key=...)``; keys and values are base64.

        Args:
            method: Its path below ``/v3/``.
            token: From ``auth/authenticate``, where authentication is on.
            **body: The request's fields.

        Raises:
            OSError: The server did not answer, or answered with an error (`urllib.error.HTTPError`).
        """
        headers = {"Content-Type": "application/json"} | ({"Authorization": token} if token else {})
        request = urllib.request.Request(  # noqa: S310 - the address is the server's
            f"{self._url}/v3/{method}", json.dumps(body).encode(), headers
        )
        with self._opener.open(request, timeout=self._timeout) as answer:
            result: dict[str, Any] = json.load(answer)
        return result

    def get(self, key: str) -> bytes | None:
        """The value of one key, or None."""
        found = self.call("kv/range", key=_base64(key.encode())).get("kvs", [])
        return base64.b64decode(found[0].get("value", "")) if found else None

    def put(self, key: str, value: bytes) -> None:
        """Write one key, whatever is there."""
        self.call("kv/put", key=_base64(key.encode()), value=_base64(value))

    def delete(self, key: str) -> None:
        """Remove one key."""
        self.call("kv/deleterange", key=_base64(key.encode()))

    def keys(self, start: str = "") -> list[str]:
        """The names of all keys that begin with `start`, in order."""
        # The range ends where `start` with its last byte raised begins; \0 stands for "to the end".
        first = start.encode() or b"\0"
        last = first[:-1] + bytes([first[-1] + 1]) if start else b"\0"
        found = self.call("kv/range", key=_base64(first), range_end=_base64(last), keys_only=True)
        return [base64.b64decode(pair["key"]).decode() for pair in found.get("kvs", [])]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
