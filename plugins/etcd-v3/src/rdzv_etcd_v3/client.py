"""Calls to etcd's JSON gateway: which endpoint, for how long, logged in as whom, and what an error means.

One call is one attempt at each endpoint at most; trying again later is the core's affair.
"""

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import urllib3
import urllib3.exceptions
from rdzv.endpoints import Endpoint, source_address
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from .failures import AttemptError, NoReplyError, NotConnectedError, RefusedError, parse_reply, tls_failure
from .stream import Stream
from .transport import Member, Transport

__all__ = ["LONGEST", "Client", "ReplyLostError"]

_T = TypeVar("_T")

LONGEST: Final = 86400.0
"""The longest time, in seconds, that anything here waits in one go: sockets overflow after 24 days."""

_JSON: Final = {"Content-Type": "application/json"}


class ReplyLostError(RendezvousConnectionError):
    """The request may have been applied, but no answer came."""


class Client:
    """The connection to one etcd, by all its endpoints, of one process."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        request_timeout: float = 3.0,
    ) -> None:
        self.request_timeout = min(request_timeout, LONGEST)
        self.patience = self.request_timeout * len(endpoints)
        """Seconds within which every endpoint had its chance to answer."""
        self.newest = 0
        """The newest revision that any answer told of."""
        self._transport = Transport(tls, server_name)
        self._scheme = "https" if tls else "http"
        # What may be wrong if an endpoint hangs up without ever having said anything.
        self._hint = (
            "; if it demands a certificate, set cert and key" if tls else "; if it speaks TLS, set protocol=https"
        )
        self._members = tuple(self._transport.member(endpoint) for endpoint in endpoints)
        self._streams: set[Stream] = set()
        self._user = user
        self._password = password
        # What logging in gave; "" if etcd demands none, None if it has not been asked yet.
        self._token: str | None = None if user else ""
        self._logging_in = threading.Lock()
        self._lock = threading.Lock()
        self.closed = False

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

        def attempt(member: Member, deadline: float) -> _T:
            reply = self._logged_in(member, deadline, lambda token: self._post(member, path, data, token, deadline))
            try:
                self.newest = max(self.newest, int(reply.get("header", {}).get("revision", 0)))
                return read(reply)
            except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
                raise NoReplyError(f"its answer is not etcd's: {str(reply)[:80]!r}") from error

        return self._try_members(attempt, timeout, repeatable=repeatable)

    def open_stream(self, path: str, body: Mapping[str, Any], timeout: float) -> Stream:
        """Call a method whose answer does not end; it need not have begun when this returns.

        Raises:
            RendezvousConnectionError: No endpoint could be reached (`RendezvousDeniedError`: all refuse us).
        """
        data = json.dumps(body).encode()

        def attempt(member: Member, deadline: float) -> Stream:
            token = self._login(member, deadline)
            patience = deadline - time.monotonic()
            stream = Stream(self._transport, member, path, data, token=token, timeout=patience)
            with self._lock:
                self._streams.add(stream)
            return stream

        return self._try_members(attempt, timeout)

    def close_stream(self, stream: Stream) -> None:
        """Close a stream. Closing twice is fine."""
        with self._lock:
            self._streams.discard(stream)
        stream.close()

    def ping(self, member: Member, timeout: float) -> None:
        """Ask an endpoint for any sign of life.

        Raises:
            AttemptError: There was none within `timeout` seconds.
        """
        self._exchange(member, "GET", "/version", None, {}, time.monotonic() + timeout)

    def demote(self, member: Member) -> None:
        """Try an endpoint after all others from now on, and end what hangs on it, so that it moves."""
        with self._lock:
            if len(self._members) == 1:
                return
            self._members = (*(other for other in self._members if other is not member), member)
            for stream in self._streams:
                if stream.member is member:
                    stream.interrupt()

    def forget_login(self, token: str) -> bool:
        """Log in again before the next call, if `token` is the login in use; False if there is nobody to log in."""
        with self._lock:
            if self._user and self._token == token:
                self._token = None
        return bool(self._user)

    def explain(self, error: AttemptError | RefusedError) -> RendezvousError:
        """The error for the caller when a stream failed."""
        if isinstance(error, RefusedError):
            return error.explain(self._user)
        kind = RendezvousDeniedError if error.denied else RendezvousConnectionError
        return kind(f"The watch of etcd broke: {error}")

    def local_address(self) -> str:
        """The source address of this machine towards etcd.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        endpoints = [member.endpoint for member in self._members]
        return self._transport.local_address() or source_address(endpoints, self.request_timeout)

    def check_open(self) -> None:
        """Raise `RendezvousConnectionError` after `close`."""
        if self.closed:
            raise RendezvousConnectionError("This backend was closed.")

    def close(self) -> None:
        """End every connection, also those in use."""
        self.closed = True
        self._transport.close()
        for member in self._members:
            member.pool.close()

    def abandon(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        self.closed = True
        self._transport.abandon()

    def _try_members(self, attempt: Callable[[Member, float], _T], timeout: float, *, repeatable: bool = True) -> _T:
        """Attempt it at each endpoint until one does not fail."""
        self.check_open()
        started = time.monotonic()
        timeout = min(timeout, LONGEST)
        failures: list[tuple[Member, AttemptError]] = []
        members = self._members
        for left in range(len(members), 0, -1):
            member = members[-left]
            remaining = started + timeout - time.monotonic()
            if remaining <= 0:
                break
            # The last one gets all the time that is left, the others leave some for those behind them.
            patience = remaining if left == 1 else min(self.request_timeout, remaining / left)
            try:
                return attempt(member, time.monotonic() + patience)
            except RefusedError as refusal:
                raise refusal.explain(self._user) from refusal
            except AttemptError as failure:
                failures.append((member, failure))
                self.demote(member)
                if failure.applied and not repeatable:
                    raise ReplyLostError(self._describe(failures, started)) from failure
        self.check_open()
        denied = bool(failures) and all(failure.denied for _, failure in failures)
        kind = RendezvousDeniedError if denied else RendezvousConnectionError
        raise kind(self._describe(failures, started)) from (failures[-1][1] if failures else None)

    def _describe(self, failures: Sequence[tuple[Member, AttemptError]], started: float) -> str:
        reasons = "; ".join(f"{self._scheme}://{member.endpoint}: {failure}" for member, failure in failures)
        seconds = time.monotonic() - started
        # What is refused at once says nothing of how long the caller goes on trying.
        tried = f" (tried for {seconds:.1f} s)" if seconds >= 0.1 else ""
        return f"etcd did not answer as it should{tried}: {reasons or 'no time was left'}"

    def _logged_in(self, member: Member, deadline: float, request: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        token = self._login(member, deadline)
        try:
            return request(token)
        except RefusedError as refusal:
            # Logins expire, and whoever refuses one has done nothing.
            if not refusal.stale_token or not self.forget_login(token):
                raise
        return request(self._login(member, deadline))

    def _login(self, member: Member, deadline: float) -> str:
        token = self._token
        if token is not None:
            return token
        if not self._logging_in.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise NotConnectedError("another thread still logs in")
        try:
            if self._token is None:
                self._token = self._authenticate(member, deadline)
            return self._token
        finally:
            self._logging_in.release()

    def _authenticate(self, member: Member, deadline: float) -> str:
        data = json.dumps({"name": self._user, "password": self._password}).encode()
        try:
            return str(self._post(member, "/v3/auth/authenticate", data, "", deadline)["token"])
        except RefusedError as refusal:
            if refusal.no_login_needed:
                return ""
            raise
        except (NoReplyError, KeyError) as error:
            # The request proper was not sent yet.
            raise NotConnectedError(f"logging in failed: {error}") from error

    def _post(self, member: Member, path: str, data: bytes, token: str, deadline: float) -> dict[str, Any]:
        headers = _JSON | {"Authorization": token} if token else _JSON
        status, answer = self._exchange(member, "POST", path, data, headers, deadline)
        try:
            return parse_reply(status, answer)
        except RefusedError as refusal:
            if refusal.undecided:
                raise NoReplyError(refusal.message) from refusal
            raise

    def _exchange(
        self, member: Member, method: str, path: str, data: bytes | None, headers: Mapping[str, str], deadline: float
    ) -> tuple[int, bytes]:
        seconds = max(deadline - time.monotonic(), 0.001)
        try:
            response = member.pool.urlopen(
                method,
                path,
                data,
                headers,
                retries=False,
                assert_same_host=False,
                timeout=urllib3.Timeout(total=seconds),
            )
        except urllib3.exceptions.HTTPError as error:
            raise _failed_exchange(error, seconds, "" if member.heard else self._hint) from error
        member.heard = time.monotonic()
        return response.status, response.data


def _failed_exchange(error: urllib3.exceptions.HTTPError, seconds: float, hint: str) -> AttemptError:
    cause = error.args[0] if error.args else None
    if isinstance(error, urllib3.exceptions.SSLError) and isinstance(cause, ssl.SSLError):
        failure = tls_failure(cause)
        return failure if failure.denied else NoReplyError(f"{failure}{hint}")
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return NoReplyError(f"no answer within {seconds:.1f} s")
    if isinstance(error, urllib3.exceptions.ClosedPoolError):
        return NotConnectedError("this backend was closed")
    return NoReplyError(f"the connection broke: {error}{hint}")
