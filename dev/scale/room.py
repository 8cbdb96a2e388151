"""For how many nodes this machine has room: files that a process may open, and ports of one address."""

import resource
from pathlib import Path
from typing import Final

__all__ = ["raise_limit"]

_OTHERS: Final = 200
"""Files that nodes and server need besides one for each node's watch."""

_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def raise_limit() -> tuple[int, str]:
    """Raise the limit of open files as far as it goes, for the server that is started, too.

    Returns:
        How many nodes there can be, and a sentence that says why.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    least, most = (int(port) for port in _PORTS.read_text().split()) if _PORTS.exists() else (49152, 65535)
    ports = most - least + 1
    count = (ports if files == resource.RLIM_INFINITY else min(files, ports)) - _OTHERS
    limits = f"{files:,} open files for each process, {ports:,} ports"
    return count, f"This machine has room for {count:,} nodes, each of which needs a connection ({limits})."
