"""What goes over a connection to ZooKeeper: frames, with kazoo's requests in them and two that it lacks."""

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

# kazoo brings no types.
from kazoo import exceptions  # type: ignore[import-untyped]
from kazoo.protocol import serialization  # type: ignore[import-untyped]
from kazoo.protocol.states import ZnodeStat  # type: ignore[import-untyped]
from rdzv_transport import EndpointError, Member, TimedSocket

from .failures import NotZooKeeperError

Request = Any
"""A request of kazoo, which has no types, or one of this module: it has a `type` and can `serialize` itself."""

EVENT_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4
"""The numbers of messages other than answers to a numbered request."""

CREATED: Final = 1
"""The type of the event that tells of a new node."""

HEADER_SIZE: Final[int] = serialization.reply_header_struct.size
"""Bytes before the body of an answer."""

_INT: Final[struct.Struct] = serialization.int_struct
_LONGEST: Final = 1 << 28
"""No answer of ZooKeeper's is longer, in bytes; what seems to be is something else."""


class Reply(NamedTuple):
    """The answer to one request: when it came the server had applied `zxid`; and a result, or a `ZookeeperError`."""

    zxid: int
    result: Any


class _WatchRequest(NamedTuple):
    """About a watch of a node and all that is or comes under it."""

    path: str
    type: int
    mode: int

    def serialize(self) -> bytes:
        return bytes(serialization.write_string(self.path) + _INT.pack(self.mode))


def add_watch(path: str) -> Request:
    """Watch a node and all that is or comes under it, until the connection ends."""
    return _WatchRequest(path, type=106, mode=1)  # persistent and recursive


def remove_watch(path: str) -> Request:
    """Watch no more what `add_watch` named."""
    return _WatchRequest(path, type=18, mode=3)  # of any kind


class Multi(serialization.Transaction):  # type: ignore[misc]
    """Several operations, all or none.

    Its result is the stat after the one `SetData` among them, None if there is none, or the error that
    kept all of them from being done. (kazoo's own gives a list of errors, of which one is true.)
    """

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> Any:
        """Read the answer."""
        consequences = exceptions.RolledBackError, exceptions.RuntimeInconsistency
        results = [one for one in super().deserialize(data, offset) if not isinstance(one, consequences)]
        return next((one for one in results if isinstance(one, exceptions.ZookeeperError | ZnodeStat)), None)


BARRIER: Final = Multi([serialization.CheckVersion("/", -1)])
"""What is read after it, over the same connection, is no older than the moment when it was sent: it takes
effect nowhere, but in its turn among all writes. ZooKeeper's own means, `Sync`, is not enough: the leader answers
before it has applied what a follower has answered already, and one that was deposed unawares answers too."""


def frame(request: Request, number: int | None) -> bytes:
    """The bytes that go over the line; `number` is None only for the first request of a connection."""
    head = b"" if number is None else _INT.pack(number) + _INT.pack(request.type or 0)
    body = head + request.serialize()
    return bytes(_INT.pack(len(body)) + body)


def read(deserialize: Callable[[bytes, int], Any], data: bytes, offset: int = 0) -> Any:
    """Read an answer.

    Raises:
        NotZooKeeperError: It is none.
    """
    try:
        return deserialize(data, offset)
    except (struct.error, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise NotZooKeeperError(f"its answer is not ZooKeeper's: {error}") from error


def read_header(data: bytes) -> Any:
    """An answer's number (`xid`), the server's last transaction (`zxid`), and an error's code or 0 (`err`)."""
    return read(serialization.ReplyHeader.deserialize, data)[0]


def read_reply(request: Request, data: bytes) -> Reply:
    """Read the answer to a request."""
    _, zxid, code = read_header(data)
    if code:
        known = exceptions.EXCEPTIONS
        return Reply(zxid, known[code]() if code in known else exceptions.ZookeeperError(f"code {code}"))
    deserialize = getattr(request, "deserialize", lambda data, offset: None)
    return Reply(zxid, read(deserialize, data, HEADER_SIZE))


class Line:
    """A connection that carries frames: a length, then that many bytes. One thread may send while another receives.

    Attributes:
        member: The server that it leads to.
        responded_at: When the server last said anything over it, on the monotonic clock.
    """

    def __init__(self, sock: TimedSocket, member: Member) -> None:
        self.member = member
        self.responded_at = time.monotonic()
        self._sock = sock
        self._rest = bytearray()
        self._kept: list[bytes] = []

    def send(self, data: bytes, deadline: float) -> None:
        """Send everything.

        Raises:
            EndpointError: It could not all be sent by the deadline; the line cannot be used any more.
        """
        try:
            self._sock.send(data, deadline)
        except OSError as error:
            raise self._sock.explain(error) from error

    def receive(self, deadline: float) -> list[bytes]:
        """All frames that are there; if there is none, wait for one. Empty when the deadline has come.

        Raises:
            EndpointError: The line has ended, or carries something else than frames.
        """
        if self._kept:
            frames, self._kept = self._kept, []
            return frames
        frames = []
        try:
            while (data := self._sock.receive(0.0 if frames else deadline)) is not None:
                if not data:
                    raise ConnectionResetError("the server ended it")
                self.responded_at = time.monotonic()
                self._rest += data
                frames += self._cut()
        except OSError as error:
            # What came before the end counts; the end will be found again.
            if not frames:
                raise self._sock.explain(error) from error
        return frames

    def next(self, deadline: float) -> bytes:
        """The first frame that was not received yet; those behind it are kept.

        Raises:
            EndpointError: As `receive`; or none came by the deadline.
        """
        if not (frames := self.receive(deadline)):
            raise EndpointError("no answer in time", applied=True)
        first, *self._kept = frames
        return first

    def close(self) -> None:
        """Close it; a thread that uses it now finds it ended. Closing twice is fine."""
        self._sock.close()

    def _cut(self) -> Iterator[bytes]:
        """The frames that are complete."""
        while len(self._rest) >= _INT.size:
            (length,) = _INT.unpack_from(self._rest)
            if not 0 <= length <= _LONGEST:
                start = bytes(self._rest[:8])
                if start.startswith(b"\x15\x03"):
                    raise NotZooKeeperError("it speaks TLS; set tls=true, or give its clientPort")
                raise NotZooKeeperError(f"it is not ZooKeeper: it says {start!r}")
            end = _INT.size + length
            if len(self._rest) < end:
                return
            yield bytes(self._rest[_INT.size : end])
            del self._rest[:end]
