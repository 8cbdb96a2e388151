"""Making a client of a TCPStore within a limit.

torch's constructor reads the host's first answer without a limit, on a socket without one: where the host is stopped,
and its machine vanishes then, the thread is stuck for good. So torch connects to a relay in this process, which hands
on what the two say to each other and hangs up at the limit. Then torch's socket becomes the connection to the host.
"""

import os
import selectors
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from rdzv_core.threads import in_thread

from .store import descriptor_of, socket_of, stores

_LOOPBACK: Final = "127.0.0.1"
_TRY: Final = timedelta(seconds=0.3)
"""For how long torch tries again when the relay has hung up."""
_CHUNK: Final = 4096


class Handshake:
    """One client in the making.

    Args:
        host: A connection to the host, which becomes the client's.
    """

    def __init__(self, host: socket.socket) -> None:
        self._host = host
        self._process = os.getpid()

    def make(self, seconds: float) -> Any:
        """Make the client.

        Args:
            seconds: How long it may take.

        Raises:
            RuntimeError: The host is no TCPStore, or did not answer in time.
            OSError: The same.
            RendezvousConnectionError: There is no room for a thread.
        """
        deadline = time.monotonic() + seconds
        with self._host, socket.create_server((_LOOPBACK, 0)) as listener:
            # As torch's own socket is.
            self._host.setblocking(True)
            self._host.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            port = listener.getsockname()[1]
            relayed = in_thread(lambda: self._relay(listener, deadline), "rdzv-c10d-handshake")
            try:
                store = stores().TCPStore(_LOOPBACK, port, is_master=False, timeout=_TRY, wait_for_workers=False)
                descriptor = _hang_up(store)
            except BaseException:
                self.cut()
                raise
            finally:
                relayed.result()
            os.dup2(self._host.fileno(), descriptor, inheritable=False)
            return store

    def cut(self) -> None:
        """Hang up, which ends it; in a fork's child, which has a copy of the socket, nothing."""
        if self._process == os.getpid():
            with suppress(OSError):
                self._host.shutdown(socket.SHUT_RDWR)

    def _relay(self, listener: socket.socket, deadline: float) -> None:
        """Hand on what torch and the host say, until one of them hangs up, or to the deadline."""
        with listener, suppress(OSError):
            if listener not in _readable([listener, self._host], deadline):
                return
            with listener.accept()[0] as torch:
                # Where torch comes again after a failure it is refused.
                listener.close()
                other = {torch: self._host, self._host: torch}
                while ready := _readable([torch, self._host], deadline):
                    for one in ready:
                        if not (data := one.recv(_CHUNK)):
                            return
                        other[one].sendall(data)


def _hang_up(store: Any) -> int:
    """End the connection of a client to the relay, which ends the relay; returns the descriptor of its socket."""
    descriptor, connection = descriptor_of(store), socket_of(store)
    if descriptor is None or connection is None:
        raise RuntimeError("this version of torch does not tell which socket its client has")
    with connection:
        connection.shutdown(socket.SHUT_WR)
    return descriptor


def _readable(candidates: list[socket.socket], deadline: float) -> list[Any]:
    """Those from which something can be read; none: the deadline is over."""
    with selectors.DefaultSelector() as selector:
        for one in candidates:
            selector.register(one, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
