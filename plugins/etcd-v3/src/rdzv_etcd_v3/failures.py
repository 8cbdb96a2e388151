"""What etcd's errors mean: for the endpoint that was asked, or for the caller."""

import json
import re
from typing import Final

from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousParameterError
from rdzv_transport import EndpointError, Reply

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


class LeaseNotFoundError(RendezvousConnectionError):
    """The lease has ended; nothing was done."""


class LoginExpiredError(RendezvousDeniedError):
    """etcd does not know who we are, or not any more; nothing was done."""


class LoginNotNeededError(RendezvousConnectionError):
    """etcd was asked to log us in, and does not demand it."""


class Refusals:
    """Raises what etcd's errors mean.

    Args:
        user: The user that logs in; None: no login.
    """

    def __init__(self, user: str | None) -> None:
        self._user = user

    def check(self, reply: Reply) -> None:
        """Raise what an answer other than a result means; see `rdzv_transport.Client`."""
        # An error of a method whose answer is a stream comes with status 200.
        if reply.status == 200 and not reply.body.startswith(b'{"error"'):
            return
        try:
            answer = json.loads(reply.body)
            # A stream wraps its error once more, and names the code differently.
            told = answer["error"] if isinstance(answer.get("error"), dict) else answer
            code = int(told["code"] if "code" in told else told["grpc_code"])
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            if reply.status in (408, 429) or reply.status >= 500:
                raise EndpointError(f"it answered {reply.status}, {reply.text!r}", applied=True) from error
            raise ValueError("it is no error of etcd's either") from error
        raise self._meaning(code, str(told.get("message", told)))

    def cancelled(self, reason: str) -> EndpointError | RendezvousError:
        """What it means that etcd cancelled a watch, for example by ``rpc error: code = X desc = Y``."""
        found = _CANCELLED.fullmatch(reason)
        name, message = found.groups() if found else ("", reason)
        return self._meaning(_NAMES.get(name, _UNAVAILABLE), message)

    def _meaning(self, code: int, message: str) -> EndpointError | RendezvousError:
        is_stale = code == _UNAUTHENTICATED or any(words in message for words in _STALE)
        if is_stale or code == _PERMISSION_DENIED or "authentication failed" in message:
            who = f"the user '{self._user}'" if self._user else "a client without user and password"
            kind = LoginExpiredError if is_stale else RendezvousDeniedError
            return kind(
                f"etcd refused {who}: {message}. Check the options user and password, "
                "and that the user's role may read and write the keys under the prefix."
            )
        if code in _UNDECIDED:
            return EndpointError(message, applied=True)
        if "request is too large" in message or "larger than max" in message:
            return RendezvousParameterError(f"The request is larger than etcd takes: {message}.")
        if "too many operations" in message:
            return RendezvousParameterError(f"etcd does less at once (--max-txn-ops): {message}.")
        if "database space exceeded" in message:
            return RendezvousConnectionError(
                f"etcd takes no writes: {message}. Compact and defragment it, then run `etcdctl alarm disarm`."
            )
        if code == _FAILED_PRECONDITION and "authentication is not enabled" in message:
            return LoginNotNeededError(f"etcd refused: {message}.")
        if code == _NOT_FOUND:
            return LeaseNotFoundError(f"etcd refused: {message}.")
        return RendezvousConnectionError(f"etcd refused: {message} (code {code}).")
