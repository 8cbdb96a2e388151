"""A small client of Consul's HTTP API, to look behind a backend's back."""

import json
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

__all__ = ["ConsulClient"]


class ConsulClient:
    """Talks to one Consul agent, with nothing but the standard library.

    Args:
        url: The agent's address, such as ``http://127.0.0.1:8500``.
        tls: The context for an ``https`` address.
        token: The ACL token, where the agent demands one.
        timeout: Seconds that one call may take.
    """

    def __init__(
        self, url: str, tls: ssl.SSLContext | None = None, *, token: str | None = None, timeout: float = 5
    ) -> None:
        self._url = url
        self._headers = {"X-Consul-Token": token} if token else {}
        self._timeout = timeout
        # No proxies: the server is on this machine, whatever the environment says.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """What one request answers, such as ``request("GET", "status/leader")``.

        Args:
            method: Of HTTP.
            path: Below ``/v1/``, with its query.
            body: What is sent.

        Raises:
            OSError: The agent did not answer, or answered with an error (`urllib.error.HTTPError`).
        """
        request = urllib.request.Request(  # noqa: S310 - the address is the server's
            f"{self._url}/v1/{path}", body, self._headers, method=method
        )
        with self._opener.open(request, timeout=self._timeout) as answer:
            return bytes(answer.read())

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
