"""What a program that ``rdzv run`` has started is given."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rdzv_core import BackendPlugin, Capability

import rdzv
from rdzv import RendezvousInfo, RendezvousParameterError, RendezvousParameters
from rdzv.channel import AgentEnd
from rdzv.current import World, variables

from .memory import MemoryBackend, MemoryService


@pytest.fixture(autouse=True)
def _another_process() -> Iterator[None]:
    """Each test is another process, as far as `current` can know."""
    rdzv.current.cache_clear()
    yield
    rdzv.current.cache_clear()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variables of a process that an agent has started, without a channel."""
    info = RendezvousInfo(None, 0, 1, None, round=1)
    params = RendezvousParameters("memory", "", "job", 1, 1)
    for name, value in variables(params, info, local_rank=0, processes=1, restarts=0).items():
        monkeypatch.setenv(name, value)
    return monkeypatch


class LeaselessBackend(MemoryBackend):
    """The same service without leases: the engine puts something before each value."""

    capabilities = frozenset({Capability.WATCH})


@pytest.mark.parametrize("kind", [MemoryBackend, LeaselessBackend])
def test_the_store_of_a_backend_that_brings_none_is_its_nodes(
    kind: type[MemoryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = MemoryService()

    plugin = BackendPlugin(
        "Brings no store.", (), lambda params: (kind(service, params.run_id), None), kind, default_endpoint=""
    )
    monkeypatch.setitem(rdzv.registered_backends, "memory", plugin)
    params = RendezvousParameters("memory", "", "job", 1, 1)
    with rdzv.get_rendezvous_handler(params) as handler:
        info = handler.next_rendezvous()
        for name, value in variables(params, info, local_rank=0, processes=1, restarts=0).items():
            monkeypatch.setenv(name, value)
        info.store.set("from", "the node")
        store = rdzv.current().store
        assert store.get("from") == b"the node"
        store.set("from", "the program")
        assert info.store.get("from") == b"the program"


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({}, "RANK is not set"),
        ({"RANK": "first"}, "RANK is 'first', no number"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
    ],
)
def test_a_process_that_no_agent_has_started_gets_an_error(environ: dict[str, str], what: str) -> None:
    with pytest.raises(
        RendezvousParameterError, match=f"The variable {what}: this process was not started by an agent"
    ):
        World.from_env(environ)


def test_a_process_has_one_world_and_its_fork_another(environment: pytest.MonkeyPatch) -> None:
    world = rdzv.current()
    assert rdzv.current() is world
    environment.setenv("RANK", "7")
    assert rdzv.current() is world
    assert World.from_env(os.environ).rank == 7
    if (child := os.fork()) == 0:
        os._exit(rdzv.current().rank)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.usefixtures("environment")
def test_without_an_agent_that_listens_nothing_happens() -> None:
    world = rdzv.current()
    world.progress(3)
    world.ready_to_drain()
    assert world.drains == ()
    with pytest.raises(RendezvousParameterError, match=r"as the step, and got 0.5\."):
        world.progress(0.5)  # type: ignore[arg-type]


def test_a_process_and_its_forks_talk_with_their_agent(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agent = AgentEnd(tmp_path / "0")
    environment.setenv("RDZV_CHANNEL", str(agent.path))
    rdzv.current().progress(3)
    agent.show([("b.1", 0.0, "spot")])
    if (child := os.fork()) == 0:
        world = rdzv.current()
        world.progress(world.drains[0].node == "b.1" and 4)
        world.ready_to_drain()
        os._exit(0)
    os.waitpid(child, 0)
    report = agent.report()
    assert (report.calls, report.step, report.ready) == (2, 4, 1)
    agent.close()


@pytest.mark.parametrize(
    ("address", "processes", "coordinator", "devices"),
    [("n1", "1", "n1:29500", None), ("fd00::2", "4", "[fd00::2]:29500", [3])],
)
def test_jax_gets_the_world(
    environment: pytest.MonkeyPatch, address: str, processes: str, coordinator: str, devices: list[int] | None
) -> None:
    """dev/tests/test_frameworks.py has a real one."""
    told: list[object] = []
    jax = SimpleNamespace(distributed=SimpleNamespace(initialize=lambda *given: told.extend(given)))
    environment.setitem(sys.modules, "jax", jax)
    place = {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": processes}
    for name, value in {**place, "MASTER_ADDR": address, "MASTER_PORT": "29500"}.items():
        environment.setenv(name, value)
    rdzv.current().jax_initialize()
    assert told == [coordinator, 8, 7, devices]
