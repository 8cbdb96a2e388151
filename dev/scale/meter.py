"""What a phase has cost: time, calls, bytes, CPU of the nodes and of the server."""

import time
from dataclasses import dataclass
from pathlib import Path

from bench.services import Service
from bench.traffic import growth

__all__ = ["HEAD", "Reading", "peak_memory", "read", "row"]

_KEEP_ALIVE = "LeaseKeepAlive"

HEAD = (
    "phase                         nodes  seconds  calls/node  keep-alives  KB/node  client ms  server ms\n"
    "                                                                               per node   per node"
)


@dataclass(frozen=True)
class Reading:
    """All counters at one moment. Those of the server count since its start, and the CPU is in seconds."""

    at: float
    calls: int
    keep_alives: int
    carried: dict[bytes, int]
    client: float
    server: float


def read(service: Service) -> Reading:
    """Read them all; raises an OSError if the server does not answer."""
    calls = service.server.calls()
    alive = calls.pop(_KEEP_ALIVE, 0)
    return Reading(
        time.monotonic(), calls.total(), alive, service.carried() or {}, time.process_time(), service.cpu() or 0.0
    )


def row(phase: str, nodes: int, before: Reading, after: Reading) -> str:
    """What has been spent between two readings, as a line below `HEAD`."""
    calls, alive = after.calls - before.calls, after.keep_alives - before.keep_alives
    kilobytes = growth(before.carried, after.carried) / 1000
    client, server = (after.client - before.client) * 1000, (after.server - before.server) * 1000
    return (
        f"{phase:28} {nodes:6,} {after.at - before.at:8.1f} {calls / nodes:11.2f} {alive / nodes:12.2f} "
        f"{kilobytes / nodes:8.1f} {client / nodes:10.2f} {server / nodes:10.2f}"
    )


def peak_memory(service: Service) -> int:
    """The most memory that the server has had, in bytes."""
    lines = Path(f"/proc/{service.server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
