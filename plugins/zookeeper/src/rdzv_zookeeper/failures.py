"""What can go wrong on the way to ZooKeeper, and which errors the caller gets."""

from typing import Final

from kazoo import exceptions  # type: ignore[import-untyped]
from rdzv_core.errors import (
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousParameterError,
    RendezvousUnsupportedError,
)
from rdzv_transport import EndpointError

_DENIED: Final = (
    exceptions.NoAuthError,
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
    exceptions.SessionClosedRequireSaslError,
)
"""Errors that say who we are is the trouble."""


class NotZooKeeperError(EndpointError):
    """What came over a connection is not ZooKeeper's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, applied=True)


class SessionEndedError(Exception):
    """The ensemble says that the session has ended. A broken connection alone ends none."""


def explain(error: Exception, path: str, who: str) -> RendezvousError:
    """The error for the caller, when ZooKeeper answered about `path` with one that a right request does not get.

    Args:
        error: ZooKeeper's.
        path: See above.
        who: As whom we are connected, in words.
    """
    told = f"{name_of(error)}{f' ({error})' if str(error) else ''}"
    if isinstance(error, _DENIED):
        return RendezvousDeniedError(
            f"ZooKeeper refused {who} at {path}: {told}. Check the options user, password, sasl and acl, "
            "and the ACL of the node that the prefix names."
        )
    if isinstance(error, exceptions.NoChildrenForEphemeralsError):
        return RendezvousParameterError(
            f"ZooKeeper keeps no key under {path}'s parent, since that one hangs on a lease."
        )
    if isinstance(error, exceptions.NotEmptyError):
        return RendezvousParameterError(f"ZooKeeper cannot hang {path} on a lease, since there are keys under it.")
    if isinstance(error, exceptions.UnimplementedError):
        return RendezvousUnsupportedError("This ZooKeeper does not know watches that last; 3.6 or newer is needed.")
    return RendezvousConnectionError(f"ZooKeeper answered to a request at {path} with {told}.")


def name_of(error: Exception) -> str:
    """ZooKeeper's name for its error."""
    return type(error).__name__.removesuffix("Error")
