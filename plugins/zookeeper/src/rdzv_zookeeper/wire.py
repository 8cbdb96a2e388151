"""ZooKeeper's requests as bytes: kazoo's, and three that it lacks. No other file imports kazoo."""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

# kazoo brings no types.
from kazoo.exceptions import (  # type: ignore[import-untyped]
    EXCEPTIONS,
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SystemZookeeperError,
    UnimplementedError,
    ZookeeperError,
)
from kazoo.protocol.serialization import (  # type: ignore[import-untyped]
    SASL,
    Auth,
    CheckVersion,
    Close,
    Connect,
    Create,
    Delete,
    GetChildren,
    GetData,
    MultiHeader,
    Ping,
    SetData,
    Sync,
    read_string,
    write_string,
)
from kazoo.protocol.states import ZnodeStat  # type: ignore[import-untyped]
from kazoo.security import ACL, Id  # type: ignore[import-untyped]

__all__ = [
    "ACL",
    "AUTH_XID",
    "BARRIER",
    "DENIED",
    "EPHEMERAL",
    "EVENT_XID",
    "HEADER_SIZE",
    "MAX_REQUEST",
    "PING_XID",
    "SASL",
    "UNCERTAIN",
    "AddWatch",
    "Auth",
    "BadVersionError",
    "CheckVersion",
    "Close",
    "Connect",
    "Create",
    "Delete",
    "GetChildren",
    "GetData",
    "Id",
    "MalformedError",
    "Multi",
    "NoChildrenForEphemeralsError",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "Ping",
    "RemoveWatch",
    "Reply",
    "Request",
    "SessionClosedRequireSaslError",
    "SessionExpiredError",
    "SetData",
    "Sync",
    "UnimplementedError",
    "ZookeeperError",
    "error_of",
    "frame",
    "parse_connect",
    "parse_event",
    "parse_header",
    "parse_reply",
]

EVENT_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4
"""The numbers of what is no answer to a numbered request."""

EPHEMERAL: Final = 1
"""The flag of a node that ends with its session."""

MAX_REQUEST: Final = 0xFFFFF
"""The largest request in bytes that a server takes by default (its jute.maxbuffer); it hangs up on a larger one."""

DENIED: Final = (NoAuthError, AuthFailedError, InvalidACLError, SessionClosedRequireSaslError)
"""Errors that say who we are is the trouble."""

UNCERTAIN: Final = (ConnectionLoss, OperationTimeoutError, RequestTimeoutError, SystemZookeeperError)
"""Errors after which a write may have been done nevertheless."""

_INT: Final = struct.Struct("!i")
_HEADER: Final = struct.Struct("!iqi")
_OPERATION: Final = struct.Struct("!i?i")
HEADER_SIZE: Final = _HEADER.size
"""Bytes before the body of an answer."""

_STAT: Final = struct.Struct("!qqqqiiiqiiq")


class MalformedError(Exception):
    """An answer that is none of ZooKeeper's."""


class Request(Protocol):
    """What kazoo's requests, and ours, can do."""

    @property
    def type(self) -> int | None:
        """ZooKeeper's number of the kind of request."""

    def serialize(self) -> bytes:
        """Its bytes."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request.

    Attributes:
        zxid: The last transaction that the server had applied when it answered.
        result: The request's own, or the `ZookeeperError`.
    """

    zxid: int
    result: Any


@dataclass(frozen=True, slots=True)
class AddWatch:
    """Watch a node and all that is or comes under it, until the connection ends."""

    path: str
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        """Its bytes."""
        persistent_recursive = 1
        return bytes(write_string(self.path) + _INT.pack(persistent_recursive))


@dataclass(frozen=True, slots=True)
class RemoveWatch:
    """Watch no more what `AddWatch` named."""

    path: str
    type: ClassVar[int] = 18

    def serialize(self) -> bytes:
        """Its bytes."""
        of_any_kind = 3
        return bytes(write_string(self.path) + _INT.pack(of_any_kind))


@dataclass(frozen=True, slots=True)
class Multi:
    """Several operations, all or none.

    Its result is the stat after the one `SetData` among them, None if there is none, or the error that
    kept all of them from being done. (kazoo's own gives a list of errors, of which one is true.)
    """

    operations: Sequence[Request]
    type: ClassVar[int] = 14

    def serialize(self) -> bytes:
        """Its bytes."""
        parts = [MultiHeader(one.type, False, -1).serialize() + one.serialize() for one in self.operations]
        return b"".join([*parts, MultiHeader(-1, True, -1).serialize()])

    @staticmethod
    def deserialize(data: bytes, offset: int) -> Any:
        """Read the answer."""
        stat = None
        while True:
            kind, done, _ = _OPERATION.unpack_from(data, offset)
            offset += _OPERATION.size
            if done:
                return stat
            if kind == Create.type:
                _, offset = read_string(data, offset)
            elif kind == SetData.type:
                stat = ZnodeStat._make(_STAT.unpack_from(data, offset))
                offset += _STAT.size
            elif kind == -1:
                error = error_of(_INT.unpack_from(data, offset)[0])
                offset += _INT.size
                if not isinstance(error, (RolledBackError, RuntimeInconsistency)):
                    return error


BARRIER: Final = Multi([CheckVersion("/", -1)])
"""What is read after it, over the same connection, is no older than the moment when it was sent: it takes
effect nowhere, but in its turn among all writes. ZooKeeper's own means, `Sync`, is not enough: the leader answers
before it has applied what a follower has answered already, and one that was deposed unawares answers too."""


def frame(request: Request, number: int | None) -> bytes:
    """The bytes that go over the line; `number` is None only for the first request of a connection."""
    head = b"" if number is None else _INT.pack(number) + _INT.pack(request.type or 0)
    body = head + request.serialize()
    return _INT.pack(len(body)) + body


def parse_connect(data: bytes) -> tuple[int, bytes, int]:
    """The answer to `Connect`: the session's number and password, and its timeout in milliseconds; 0: it has ended."""
    with _malformed():
        answer, _ = Connect.deserialize(data, 0)
        return answer.session_id, answer.passwd, answer.time_out


def parse_header(data: bytes) -> tuple[int, int, int]:
    """The number of a reply, the server's last transaction, and an error's code or 0."""
    with _malformed():
        number, zxid, code = _HEADER.unpack_from(data)
        return number, zxid, code


def parse_reply(request: Request, data: bytes) -> Reply:
    """Read the answer to a request."""
    _, zxid, code = parse_header(data)
    if code:
        return Reply(zxid, error_of(code))
    with _malformed():
        deserialize = getattr(request, "deserialize", None)
        return Reply(zxid, deserialize(data, HEADER_SIZE) if deserialize else None)


def parse_event(data: bytes) -> str:
    """The path of the node that an event is about."""
    with _malformed():
        path, _ = read_string(data, HEADER_SIZE + 2 * _INT.size)
        return str(path)


def error_of(code: int) -> ZookeeperError:
    """The error for a code of ZooKeeper's."""
    return EXCEPTIONS[code]() if code in EXCEPTIONS else ZookeeperError(f"code {code}")


@contextlib.contextmanager
def _malformed() -> Iterator[None]:
    try:
        yield
    except (struct.error, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise MalformedError(str(error)) from error
