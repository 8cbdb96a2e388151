"""What can go wrong on the way to ZooKeeper, and which errors the caller gets."""

import ssl
from typing import Final, Self

from rdzv.errors import (
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousParameterError,
    RendezvousUnsupportedError,
)

from . import wire

__all__ = [
    "BrokenError",
    "EndpointError",
    "NotZooKeeperError",
    "ReplyLostError",
    "SessionEndedError",
    "explain",
    "explain_tls",
]

_TOO_OLD: Final = "This ZooKeeper does not know watches that last; 3.6 or newer is needed"


class EndpointError(Exception):
    """One attempt to connect to one server failed; another server may do better.

    Attributes:
        denied: Whether trying this server again is pointless.
    """

    def __init__(self, reason: str, *, denied: bool = False) -> None:
        super().__init__(reason)
        self.denied = denied


class BrokenError(Exception):
    """A connection ended, or is no use any more.

    Attributes:
        sent: Whether anything of what was to be sent may have arrived.
        denied: Whether trying this server again is pointless.
    """

    def __init__(self, reason: str, *, sent: bool = True, denied: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.denied = denied

    def again(self, *, sent: bool) -> Self:
        """The same, for another request."""
        return type(self)(str(self), sent=sent, denied=self.denied)


class NotZooKeeperError(BrokenError):
    """What came over a connection is not ZooKeeper's."""


class SessionEndedError(Exception):
    """The ensemble says that the session has ended. A broken connection alone ends none."""


class ReplyLostError(RendezvousConnectionError):
    """The request may have been applied, but no answer came."""


def explain(error: Exception, path: str, who: str) -> RendezvousError:
    """The error for the caller, when ZooKeeper answered with one that a right request does not get.

    Args:
        error: ZooKeeper's.
        path: What it was about.
        who: As whom we are connected, in words.
    """
    if isinstance(error, wire.DENIED):
        return RendezvousDeniedError(
            f"ZooKeeper refused {who} at {path}: {_name(error)}. Check the options user, password, sasl and acl, "
            "and the ACL of the node that the prefix names."
        )
    if isinstance(error, wire.NoChildrenForEphemeralsError):
        return RendezvousParameterError(
            f"ZooKeeper keeps no key under {path}'s parent, since that one hangs on a lease."
        )
    if isinstance(error, wire.NotEmptyError):
        return RendezvousParameterError(f"ZooKeeper cannot hang {path} on a lease, since there are keys under it.")
    if isinstance(error, wire.UnimplementedError):
        return RendezvousUnsupportedError(f"{_TOO_OLD}.")
    return RendezvousConnectionError(f"ZooKeeper answered to a request at {path} with {_name(error)}.")


def explain_tls(error: OSError) -> EndpointError:
    """What a TLS failure means, and whether trying again is pointless."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return EndpointError(f"its certificate cannot be trusted: {why}; check ca_cert and server_name", denied=True)
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return EndpointError("it does not speak TLS here; set tls=false, or give its secureClientPort", denied=True)
    if "ALERT" in reason and "INTERNAL" not in reason:
        wanted = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return EndpointError(
            f"it refused this client's certificate ({wanted}); check the options cert and key", denied=True
        )
    if "EOF" in reason:
        return EndpointError("it ended the connection; if it does not speak TLS here, set tls=false")
    return EndpointError(f"TLS failed: {error}")


def _name(error: Exception) -> str:
    return f"{type(error).__name__.removesuffix('Error')}{f' ({error})' if str(error) else ''}"
