"""HTTP and TLS to a server on this machine, with nothing but the standard library."""

import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerTls:
    """The certificates of a server that speaks TLS to its clients, as paths of PEM files.

    Attributes:
        cert: The server's certificate; it must name ``127.0.0.1``.
        key: The server's private key.
        ca: The authority that signed the certificates.
        client_cert: A client's certificate; with it the server demands one of every client.
        client_key: Its private key.
    """

    cert: str | Path
    key: str | Path
    ca: str | Path
    client_cert: str | Path | None = None
    client_key: str | Path | None = None

    def client_context(self) -> ssl.SSLContext:
        """The context with which a client connects."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.client_cert:
            context.load_cert_chain(str(self.client_cert), str(self.client_key) if self.client_key else None)
        return context


class HttpClient:
    """Talks to one server.

    Args:
        url: The server's address, such as ``http://127.0.0.1:2379``.
        tls: The context for an ``https`` address.
        timeout: Seconds that one call may take.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, *, timeout: float = 5) -> None:
        self._url = url
        self._timeout = timeout
        # No proxies: the server is on this machine, whatever the environment says.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - the address is the server's
            f"{self._url}{path}", body, dict(headers), method=method
        )
        with self._opener.open(request, timeout=self._timeout) as answer:
            return bytes(answer.read())
