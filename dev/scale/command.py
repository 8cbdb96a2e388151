"""The command: its options, the nodes and the service, and the order of the phases."""

import argparse
import asyncio
import gc
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

from bench.arguments import at_least, seconds
from bench.services import Service, start
from rdzv import RendezvousSettings, RendezvousTimeout
from rdzv_conformance.servers import ServiceMissingError
from rdzv_core.endpoints import parse_endpoints
from rdzv_etcd_v3 import EtcdV3Backend

import scale

from . import floor, meter
from .lateness import Lateness
from .logs import show_first_few
from .node import ScaledNode
from .phases import PhaseError, Phases
from .room import raise_limit
from .runner import Access

__all__ = ["main"]

_CALLERS = 3
"""Threads that make calls: with the leader's one as many as the connections that a backend keeps: the bytes of one that
is closed are counted nowhere."""

_RUN = "scale"


def main() -> None:
    """See the package."""
    arguments = _parse()
    show_first_few()
    room, why = raise_limit()
    print(why, file=sys.stderr)
    if arguments.nodes > room:
        sys.exit(f"{arguments.nodes:,} nodes are too many here. Raise the limit (ulimit -Hn) or take fewer.")
    try:
        with start(arguments.backend) as service:
            sys.exit(0 if asyncio.run(_run(service, arguments)) else 1)
    except ServiceMissingError as error:
        sys.exit(str(error))
    except PhaseError as error:
        sys.exit(f"It did not come to an end: {error}")
    except KeyboardInterrupt:
        print("Stopped; this is what there is.", file=sys.stderr)
        sys.exit(130)


async def _run(service: Service, arguments: argparse.Namespace) -> bool:
    """Go through all phases; whether all was as it should be."""
    settings = _settings(arguments.nodes, arguments.interval or max(5.0, arguments.nodes / 500))
    interval = settings.keep_alive_interval.total_seconds()
    lives = interval * settings.keep_alive_max_attempt
    count = arguments.nodes
    print(f"{count:,} nodes on {arguments.backend}; a keep-alive every {interval:g} s, time to live {lives:g} s")
    print(meter.HEAD, flush=True)
    # Python's collector looks through all that lives, again and again: of ten thousand nodes in one process that costs
    # as much as they do, and no program has them.
    gc.disable()
    if arguments.floor:
        before = meter.read(service)
        # Over as many connections as the nodes: those of the callers, and the leader's.
        gathering = floor.gather(service.endpoint, count, _CALLERS + 1, interval, lives)
        try:
            await asyncio.wait_for(gathering, arguments.limit)
        except TimeoutError:
            raise PhaseError(f"the bare nodes did not gather in {arguments.limit:g} s") from None
        print(meter.row("gather, bare nodes", count, before, meter.read(service)))
        return True
    with _access(service) as access:
        nodes = [ScaledNode(number, settings, access) for number in range(count)]
        lateness = Lateness(access.pool)
        phases = Phases(nodes, service, lateness, arguments.limit)
        watching = asyncio.create_task(lateness.watch())
        try:
            await phases.gather()
            await phases.idle(lives)
            followers = [node for node in phases.living if not node.leads]
            # A few always, so that small worlds lose some as well.
            few = random.Random(count).sample(followers, max(1, count // 10))
            await phases.lose("10 % die: gather again", few)
            await phases.lose("leader dies: gather again", [node for node in phases.living if node.leads])
        finally:
            watching.cancel()
            for node in phases.living:
                node.kill()
    print(f"The server had at most {meter.peak_memory(service) / 1e6:,.0f} MB of memory.")
    return phases.went_well


@contextmanager
def _access(service: Service) -> Iterator[Access]:
    """What the nodes call the service with."""
    backend = EtcdV3Backend(parse_endpoints(service.endpoint, 2379), _RUN)
    with ThreadPoolExecutor(_CALLERS, "call") as pool, ThreadPoolExecutor(1, "leader") as leaders:
        try:
            yield Access(backend, pool, leaders)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            leaders.shutdown(wait=False, cancel_futures=True)
            backend.close()


def _settings(nodes: int, interval: float) -> RendezvousSettings:
    """Worlds of all nodes at first, then of those that are left: no last call ends before all have come."""
    timeout = RendezvousTimeout(join=timedelta(hours=1), last_call=timedelta(hours=1))
    return RendezvousSettings(_RUN, max(1, nodes // 2), nodes, timeout, timedelta(seconds=interval), 3)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 dev.py scale", description=scale.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=at_least(2), metavar="N", default=1000, help="how many (1,000)")
    parser.add_argument("--backend", choices=["etcd-v3"], default="etcd-v3", help="on which service")
    parser.add_argument(
        "--interval",
        type=seconds,
        metavar="SECONDS",
        help="seconds between two keep-alives of a node; a third of the time to live (5, and more for more than 2,500 "
        "nodes: all share one processor here)",
    )
    parser.add_argument(
        "--floor",
        action="store_true",
        help="have bare nodes gather, and nothing more: over plain sockets they send and receive as much as nodes do, "
        "without deadlines, failures and rules, which is the least that Python takes here",
    )
    parser.add_argument(
        "--limit", type=seconds, metavar="SECONDS", default=600.0, help="seconds that each phase may take (600)"
    )
    return parser.parse_args()
