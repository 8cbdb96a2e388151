"""Calls to etcd's JSON gateway, logged in where etcd demands it.

Which endpoint is asked, and for how long, is the affair of `rdzv_transport`.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_transport import Client as HttpClient
from rdzv_transport import EndpointError, Present, Reply, Request, Stream, alone, number_of

from .failures import LoginExpiredError, LoginNotNeededError, Refusals

_T = TypeVar("_T")

_ALIVE: Final = Request("GET", "/version")
"""Every member answers this without a call to etcd."""

_HAS_LEADER: Final = {"Grpc-Metadata-hasleader": "true"}
"""A member that lost the others ends such a watch; any other would stay silent for ever."""


class Client:
    """The connection to one etcd, by all its endpoints, of one process. Settings: see `rdzv_transport.Client`."""

    def __init__(
        self, endpoints: Sequence[Endpoint], user: str | None = None, password: str | None = None, **settings: Any
    ) -> None:
        self._refusals = Refusals(user)
        self.http = HttpClient(
            "etcd",
            endpoints,
            self._refusals.check,
            headers={"Content-Type": "application/json"},
            kind="etcd 3.4 or newer, with its gateway enabled",
            **settings,
        )
        """By which it is reached."""
        self.newest = 0
        """The newest revision that any answer named."""
        self._user = user
        self._password = None if password is None else Present.secret(password)
        # What logging in gave; "" if etcd demands none, None if it has not been asked yet.
        self._token: str | None = None if user else ""
        self._logging_in = threading.RLock()

    def call(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout: float,
        read: Callable[[dict[str, Any]], _T],
        *,
        repeatable: bool = True,
    ) -> _T:
        """Call a method.

        Args:
            path: Of the method, such as ``/v3/kv/range``.
            body: The request.
            timeout: Seconds for everything.
            read: Makes the result of the answer.
            repeatable: Whether the request may be sent to another endpoint though it may have been
                applied already.

        Raises:
            ReplyLostError: The request may have been applied (only if not `repeatable`).
            LeaseNotFoundError: The lease in the request has ended; nothing was done.
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us).
            RendezvousParameterError: The request is too large.
        """
        data = json.dumps(body).encode()
        deadline = time.monotonic() + timeout

        def understand(reply: Reply) -> _T:
            answer = _decoded(reply)
            self.newest = max(self.newest, number_of(answer.get("header", {}).get("revision", 0)))
            return read(answer)

        def ask(token: str) -> _T:
            request = Request("POST", path, data, repeatable, headers=_login(token))
            return self.http.call(request, deadline - time.monotonic(), understand)

        token = self._log_in(deadline)
        try:
            return ask(token)
        except LoginExpiredError:
            if not self.forget_login(token):
                raise
        return ask(self._log_in(deadline))

    def watch(
        self, body: Mapping[str, Any], timeout: float, read: Callable[[dict[str, Any]], _T]
    ) -> tuple[Stream[_T], str]:
        """Open a watch; etcd need not have confirmed it when this returns.

        Args:
            body: The request.
            timeout: Seconds until it is sent.
            read: Makes something of one of its messages.

        Returns:
            The messages, and the login with which it was opened.

        Raises:
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us).
        """
        deadline = time.monotonic() + timeout
        token = self._log_in(deadline)
        request = Request("POST", "/v3/watch", json.dumps(body).encode(), headers=_HAS_LEADER | _login(token))
        remaining = deadline - time.monotonic()
        return self.http.open_stream(request, remaining, lambda reply: read(_decoded(reply)), _ALIVE), token

    def cancelled(self, reason: str) -> EndpointError | RendezvousError:
        """What it means that etcd cancelled a watch, and said so."""
        return self._refusals.cancelled(reason)

    def forget_login(self, token: str) -> bool:
        """Log in again before the next call, if `token` is the login in use; False if there is no user to log in."""
        if self._user and self._token == token:
            self._token = None
        return bool(self._user)

    def _log_in(self, deadline: float) -> str:
        token = self._token
        if token is not None:
            return token
        token = alone(self._logging_in, partial(self._logged_in, deadline), deadline)
        if token is None:
            raise RendezvousConnectionError("etcd was not asked: another thread still logs in")
        return token

    def _logged_in(self, deadline: float) -> str:
        if self._token is None:
            self._token = self._authenticate(deadline - time.monotonic())
        return self._token

    def _authenticate(self, timeout: float) -> str:
        data = json.dumps({"name": self._user, "password": self._password and self._password()}).encode()
        request = Request("POST", "/v3/auth/authenticate", data)
        try:
            return self.http.call(request, timeout, lambda reply: str(_decoded(reply)["token"]))
        except LoginNotNeededError:
            return ""


def _decoded(reply: Reply) -> dict[str, Any]:
    # Of bytes json would guess the encoding, which takes a quarter of the time.
    answer: dict[str, Any] = json.loads(str(reply.body, "utf-8"))
    return answer


def _login(token: str) -> dict[str, str]:
    return {"Authorization": token} if token else {}
