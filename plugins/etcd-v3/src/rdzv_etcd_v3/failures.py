"""What can go wrong with one attempt at one endpoint, and what of it the caller is told.

None of these leaves the package. They are no `OSError`, so that urllib3 lets them through as they are.
"""

import json
import re
import ssl
from typing import Any, Final, Self

from rdzv.errors import (
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousParameterError,
)

__all__ = [
    "AttemptError",
    "LeaseNotFoundError",
    "NoReplyError",
    "NotConnectedError",
    "RefusedError",
    "parse_reply",
    "tls_failure",
]

# Of https://grpc.github.io/grpc/core/md_doc_statuscodes.html
_INVALID_ARGUMENT: Final = 3
_NOT_FOUND: Final = 5
_PERMISSION_DENIED: Final = 7
_FAILED_PRECONDITION: Final = 9
_UNAVAILABLE: Final = 14
_UNAUTHENTICATED: Final = 16
_UNDECIDED: Final = frozenset({1, 2, 4, 13, _UNAVAILABLE})
"""Cancelled, unknown, deadline exceeded, internal, unavailable: another member may do better."""
_STALE: Final = ("user name is empty", "auth store is old", "revision in header is old")
"""What etcd says of a login that it knew once; the code differs from version to version."""
_NAMES: Final = {
    "InvalidArgument": _INVALID_ARGUMENT,
    "PermissionDenied": _PERMISSION_DENIED,
    "Unauthenticated": _UNAUTHENTICATED,
}
_CANCELLED: Final = re.compile(r".*code = (\w+) desc = (.*)")


class AttemptError(Exception):
    """One attempt at one endpoint failed; another endpoint may do better.

    Attributes:
        denied: Whether trying this endpoint again is pointless.
        applied: Whether the request may have been applied nevertheless.
    """

    denied = False
    applied = True


class NotConnectedError(AttemptError):
    """There is no connection: nothing was sent."""

    applied = False

    def __init__(self, reason: str, *, denied: bool = False) -> None:
        super().__init__(reason)
        self.denied = denied


class NoReplyError(AttemptError):
    """The request was sent, and no usable answer came."""


class RefusedError(Exception):
    """etcd answered with an error.

    Attributes:
        code: gRPC's.
        message: etcd's.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message

    @classmethod
    def of_watch(cls, reason: str) -> Self:
        """The error for a watch that etcd cancelled, for example by ``rpc error: code = X desc = Y``."""
        found = _CANCELLED.fullmatch(reason)
        return cls(_NAMES.get(found[1], _UNAVAILABLE), found[2]) if found else cls(_UNAVAILABLE, reason)

    @property
    def denied(self) -> bool:
        """Whether we may not do what we asked for, as who we are."""
        return self.code == _PERMISSION_DENIED or self.stale_token or "authentication failed" in self.message

    @property
    def undecided(self) -> bool:
        """Whether this says more about the member that answered than about the request."""
        return self.code in _UNDECIDED and not self.stale_token

    @property
    def stale_token(self) -> bool:
        """Whether logging in again may help."""
        return self.code == _UNAUTHENTICATED or any(words in self.message for words in _STALE)

    @property
    def no_login_needed(self) -> bool:
        """Whether etcd was asked to log us in and does not demand it."""
        return self.code == _FAILED_PRECONDITION and "authentication is not enabled" in self.message

    def explain(self, user: str | None) -> RendezvousError:
        """The error for the caller."""
        if self.denied:
            who = f"the user '{user}'" if user else "a client without user and password"
            return RendezvousDeniedError(
                f"etcd refused {who}: {self.message}. Check the options user and password, "
                "and that the user's role may read and write the keys under the prefix."
            )
        if "request is too large" in self.message or "larger than max" in self.message:
            return RendezvousParameterError(f"The request is larger than etcd takes: {self.message}.")
        if self.code == _NOT_FOUND:
            return LeaseNotFoundError(f"etcd refused: {self.message}.")
        if "database space exceeded" in self.message:
            return RendezvousConnectionError(
                f"etcd takes no writes: {self.message}. Compact and defragment it, then run `etcdctl alarm disarm`."
            )
        return RendezvousConnectionError(f"etcd refused: {self.message} (code {self.code}).")


class LeaseNotFoundError(RendezvousConnectionError):
    """The lease has ended; nothing was done."""


def _unlike_etcd(status: int, data: bytes) -> AttemptError:
    """The error for an answer that is none of etcd's."""
    shown = data[:80].decode("ascii", "replace")
    if b"HTTP request to an HTTPS server" in data:
        return NotConnectedError("it speaks TLS; set protocol=https", denied=True)
    return NoReplyError(
        f"it did not answer as etcd's JSON gateway does, but with HTTP {status} and {shown!r}; "
        "is it etcd 3.4 or newer, with its gateway enabled?"
    )


def parse_reply(status: int, data: bytes) -> dict[str, Any]:
    """The JSON object that etcd answered.

    Raises:
        RefusedError: It is an error.
        AttemptError: It is nothing that etcd would say.
    """
    try:
        reply = json.loads(data)
        if "error" in reply or status != 200:
            # A stream wraps its error once more, and names the code differently.
            error = reply.get("error", reply)
            error = error if isinstance(error, dict) else reply
            code = error["code"] if "code" in error else error["grpc_code"]
            raise RefusedError(int(code), str(error.get("message", error)))
        if not isinstance(reply, dict):
            raise TypeError("no object")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unlike_etcd(status, data) from error
    return reply


def tls_failure(error: OSError) -> NotConnectedError | NoReplyError:
    """The error for TLS that failed, during the handshake or after it.

    With TLS 1.3 a server looks at our certificate only after our handshake is over; it has done
    nothing when it refuses it.
    """
    reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return NotConnectedError(
            f"its certificate cannot be trusted: {why}; check ca_cert and server_name", denied=True
        )
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}:
        return NotConnectedError("it does not speak TLS; set protocol=http", denied=True)
    if "ALERT" in reason and "INTERNAL" not in reason:
        wanted = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return NotConnectedError(f"it refused this client's certificate ({wanted}); check cert and key", denied=True)
    return NoReplyError(f"TLS failed: {error}")
