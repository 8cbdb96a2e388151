"""A world whose agents' calls fail at random, with errors of any class, goes on as if nothing were wrong."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .agents import Agents, agents_on, program

TTL: Final = 1.5
OPTIONS: Final = {"keep_alive_interval": TTL / 5, "keep_alive_max_attempt": 5, "last_call_timeout": 30}
"""Short enough for many keep-alives in half a minute, long enough for a busy machine."""

WORK: Final = f"""
import rdzv, time
world = rdzv.current()
print(f"round {{world.round}}: rank {{world.rank}} of {{world.world_size}}", flush=True)
time.sleep({20 * TTL + 2})
"""

FLAKY: Final = """
import atexit, dataclasses, importlib.metadata, random, threading
import rdzv
from rdzv import EventKind, hookimpl, register_hooks
from rdzv_conformance.flaky import Errors, flaky

(entry,) = importlib.metadata.entry_points(group="rdzv", name="{backend}")
real = entry.load()
errors = Errors(random.Random({seed}))

def create_backend(params):
    backend, store = real.create_backend(params)
    # The errors are for the engine; a round's store is kept on the backend as it is.
    return flaky(backend, errors), store or rdzv.KeyValueStore(backend)

class Plugin:
    @hookimpl
    def rdzv_event(self, event):
        print(f"event: {{event.kind.value}}", flush=True)
        if event.kind is EventKind.ROUND_PUBLISHED:
            errors.chance = 0.05
            threading.Timer({seconds}, behave).start()

def behave():
    # A caller who ends its part hears of what a backend should not raise; what it may raise goes on.
    errors.kinds = (rdzv.RendezvousConnectionError,)

rdzv.registered_backends["{backend}"] = dataclasses.replace(real, create_backend=create_backend)
register_hooks(Plugin())
atexit.register(lambda: print(f"{{errors.count}} calls have failed", flush=True))
"""
"""For an agent's process: its backend fails one call in twenty from the first world on, for a while in every way."""


@pytest.fixture(params=["sqlite", "etcd-v3", "consul"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    """Agents on services with leases, and on one with heartbeat leases."""
    with agents_on(request.param, tmp_path) as agents:
        yield agents


@pytest.mark.soak
def test_calls_that_fail_for_20_times_to_live_cost_no_node_its_world(agents: Agents, tmp_path: Path) -> None:
    job = program(tmp_path, WORK)
    nodes = [
        agents.start(
            *job,
            nnodes="2:3",
            options=OPTIONS,
            prelude=FLAKY.format(backend=agents.service[1], seed=number, seconds=20 * TTL),
        )
        for number in range(3)
    ]
    for node in nodes:
        node.says("round 1: rank . of 3")
    ends = [node.ends(20 * TTL + 60) for node in nodes]
    assert ends == [0, 0, 0], "\n\n".join(node.said for node in nodes)
    said = "\n".join(node.said for node in nodes)
    assert not re.search("round 2|event: (evicted|node lost)", said), said
    failed = [int(count) for count in re.findall(r"(\d+) calls have failed", said)]
    print(f"{agents.service[1]}: {failed} calls have failed")
    assert len(failed) == 3
    assert sum(failed) >= 5
