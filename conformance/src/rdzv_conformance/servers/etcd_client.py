"""A small client of etcd's JSON gateway, to look behind a backend's back."""

import base64
import json
from typing import Any

from .http_client import HttpClient


class EtcdClient(HttpClient):
    """Talks to one etcd server; its arguments are those of `HttpClient`."""

    def get_text(self, path: str) -> str:
        """What ``GET path`` answers, such as ``/metrics``.

        Raises:
            OSError: The server did not answer, or answered with an error (`urllib.error.HTTPError`).
        """
        return self._ask("GET", path, None, {}).decode()

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
        result: dict[str, Any] = json.loads(self._ask("POST", f"/v3/{method}", json.dumps(body).encode(), headers))
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
