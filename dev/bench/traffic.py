"""The bytes on the connections to a port of this machine, as the kernel counts them for each.

Nothing stands in the way of what is measured, as a proxy would. After ``sock_diag(7)`` and ``linux/inet_diag.h``.
"""

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["growth", "traffic"]

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_ERROR: Final = 2
_DONE: Final = 3
_INFO: Final = 2
_COUNTERS: Final = struct.Struct("=QQ")  # bytes acknowledged, bytes received: within TCP_INFO, at
_COUNTERS_AT: Final = 120
_HEADER: Final = struct.Struct("=IHHII")
_SOCKET_SIZE: Final = 72
"""Of what precedes a socket's attributes."""
_ENDS_TO: Final = 40
"""The two ports and addresses stand at 4, up to this."""


def traffic(port: int) -> dict[bytes, int]:
    """For every open connection to a port, by its two ends: how many bytes it has carried, both ways together.

    Raises:
        OSError: This system cannot tell.
    """
    found: dict[bytes, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for ends, remote, info in _sockets(family):
            if remote == port and len(info) >= _COUNTERS_AT + _COUNTERS.size:
                found[ends] = sum(_COUNTERS.unpack_from(info, _COUNTERS_AT))
    return found


def growth(before: Mapping[bytes, int], after: Mapping[bytes, int]) -> int:
    """The bytes between two looks; what was carried by a connection that was closed meanwhile is not known."""
    return sum(carried - before.get(ends, 0) for ends, carried in after.items())


def _sockets(family: int) -> Iterator[tuple[bytes, int, bytes]]:
    """Both ends, the other end's port and TCP_INFO of each socket."""
    if sys.platform != "linux":
        raise OSError("only Linux tells")
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 0xFFFFFFFF) + bytes(48)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
        while True:
            data = kernel.recv(1 << 18)
            while data:
                size, kind, *_ = _HEADER.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", data, _HEADER.size)[0], "the kernel does not tell")
                message, data = data[_HEADER.size : size], data[(size + 3) & ~3 :]
                (remote,) = struct.unpack_from("!H", message, 6)
                yield message[4:_ENDS_TO], remote, _attribute(message[_SOCKET_SIZE:])


def _attribute(attributes: bytes) -> bytes:
    while len(attributes) >= 4:
        size, kind = struct.unpack_from("=HH", attributes)
        if kind == _INFO:
            return attributes[4:size]
        attributes = attributes[(size + 3) & ~3 :]
    return b""
