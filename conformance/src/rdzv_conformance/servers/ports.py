"""Free TCP ports for servers that take their port on the command line."""

import contextlib
import random
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Find ports on which no process listens.

    They lie below the range from which the kernel takes the near end of outgoing connections: while a server
    is down, a client that keeps trying to reach it could otherwise be given that very port, connect to
    itself, and keep the server from coming back.

    Args:
        count: How many.
        host: The address to try them on.

    Returns:
        Different ports. Another process may still take one before you do: be ready to try again.

    Raises:
        RuntimeError: There are none.
    """
    upper = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32768
    if upper < 12000:
        upper = 65536
    candidates = random.sample(range(10000, upper), k=1000)
    found: list[int] = []
    for port in candidates:
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"{count} free ports were wanted on {host}, and 1000 tries found {len(found)}.")
