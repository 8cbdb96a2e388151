"""The fault proxies between the agents and the service, in a process of their own.

An agent is given ports of its proxies instead of the service's. Proxies have threads, which a process that
forks agents must not have.
"""

import logging
import signal
import socket
from collections.abc import Sequence
from typing import Final

from ..processes import Link
from ..proxy import FaultProxy
from . import namespaces

_HOST: Final = "127.0.0.1"


def serve_proxies(link: Link) -> None:
    """The life of the process, which never ends by itself: it can be asked for what `Proxies` does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    link.obey(Proxies())


class Proxies:
    """Of each agent by its name: a proxy for each target, and the loopback of its namespace."""

    def __init__(self) -> None:
        self._proxies: dict[str, list[FaultProxy]] = {}
        self._controls: dict[str, socket.socket] = {}

    def open(self, name: str, targets: Sequence[tuple[str, int]], pid: int | None) -> list[str]:
        """Make the proxies of one agent.

        Args:
            name: Whose they are.
            targets: Where the service is.
            pid: A process in whose namespace the ways begin; None: in ours.

        Returns:
            The ``host:port`` of each beginning, in the order of `targets`.
        """
        if pid is None:
            listeners = [_listen() for _ in targets]
        else:
            control, *listeners = namespaces.within(pid, lambda: [_control(), *(_listen() for _ in targets)])
            self._controls[name] = control
        self._proxies[name] = [
            FaultProxy(port, host=host, listener=listener)
            for (host, port), listener in zip(targets, listeners, strict=True)
        ]
        return [proxy.endpoint for proxy in self._proxies[name]]

    def partition(self, name: str, what: str) -> None:
        """Let nothing through: one of `proxy.PARTITIONS`, or ``wire``: the agent's network is down."""
        if what == "wire":
            namespaces.set_loopback(self._controls[name], up=False)
            return
        for proxy in self._proxies[name]:
            proxy.partition(what)

    def slow(self, name: str, seconds: float) -> None:
        """Have each answer come so much later."""
        for proxy in self._proxies[name]:
            proxy.slow(seconds)

    def heal(self, name: str, lose: bool) -> None:
        """Let everything through again; what was held back is lost with its connections, or comes late."""
        for proxy in self._proxies[name]:
            proxy.heal(lose)
        if name in self._controls:
            namespaces.set_loopback(self._controls[name], up=True)

    def close(self, name: str) -> None:
        """Remove an agent's proxies."""
        self.heal(name, lose=True)
        for proxy in self._proxies.pop(name):
            proxy.close()
        if name in self._controls:
            self._controls.pop(name).close()


def _listen() -> socket.socket:
    return socket.create_server((_HOST, 0), backlog=128)


def _control() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
