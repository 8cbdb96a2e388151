"""A small client of Consul's HTTP API, to look behind a backend's back."""

import json
import ssl
import urllib.error
from typing import Any
from urllib.parse import quote

from .http_client import HttpClient


class ConsulClient(HttpClient):
    """Talks to one Consul agent; its arguments are those of `HttpClient`, and `token`, where the agent demands one."""

    def __init__(
        self, url: str, tls: ssl.SSLContext | None = None, *, token: str | None = None, timeout: float = 5
    ) -> None:
        super().__init__(url, tls, timeout=timeout)
        self._headers = {"X-Consul-Token": token} if token else {}

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """What one request answers, such as ``request("GET", "status/leader")``.

        Args:
            method: Of HTTP.
            path: Below ``/v1/``, with its query.
            body: What is sent.

        Raises:
            OSError: The agent did not answer, or answered with an error (`urllib.error.HTTPError`).
        """
        return self._ask(method, f"/v1/{path}", body, self._headers)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """As `request`, in JSON."""
        return json.loads(self.request(method, path, None if body is None else json.dumps(body).encode()))

    def get(self, key: str) -> bytes | None:
        """The value of one key, or None."""
        return self._find(f"kv/{quote(key)}?consistent&raw")

    def put(self, key: str, value: bytes) -> None:
        """Write one key, whatever is there."""
        self.request("PUT", f"kv/{quote(key)}", value)

    def delete(self, key: str) -> None:
        """Remove one key."""
        self.request("DELETE", f"kv/{quote(key)}")

    def keys(self, start: str = "") -> list[str]:
        """The names of all keys that begin with `start`, in order."""
        found = self._find(f"kv/{quote(start)}?consistent&keys")
        return [] if found is None else list(json.loads(found))

    def _find(self, path: str) -> bytes | None:
        try:
            return self.request("GET", path)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            raise
