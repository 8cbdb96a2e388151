"""Network namespaces of agents: each has nothing but a loopback of its own, which can be taken down.

Linux only, and as root. A namespace has no name: it is gone with the last process and socket in it.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ..processes import Link, Processes

_R = TypeVar("_R")

_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1


def are_possible() -> bool:
    """Whether this process may make network namespaces."""
    with Processes() as processes:
        return bool(processes.fork(_may_isolate).result())


def _may_isolate(link: Link) -> bool:
    try:
        isolate()
    except (OSError, AttributeError):  # not allowed, or not Linux
        return False
    return True


def isolate() -> None:
    """Move this process into a new namespace, with its loopback up.

    Raises:
        OSError: It may not.
    """
    _call("unshare", _CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        set_loopback(control, up=True)


def within(pid: int, work: Callable[[], _R]) -> _R:
    """Do some work in the namespace of another process; the sockets that it makes stay there.

    Raises:
        OSError: The process is gone.
    """

    def enter() -> _R:
        with open(f"/proc/{pid}/ns/net") as namespace:
            _call("setns", namespace.fileno(), _CLONE_NEWNET)
        return work()

    # On a thread that ends: the others stay where they are.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter).result()


def set_loopback(control: socket.socket, *, up: bool) -> None:
    """Switch the loopback of the namespace that a socket was made in on or off."""
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP if up else 0))


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
