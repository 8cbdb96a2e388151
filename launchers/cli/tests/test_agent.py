"""What an agent asks the service for, on one that lives in this process."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from engine.tests.memory import MemoryBackend, MemoryService
from rdzv import DynamicRendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousSettings
from rdzv.engine.records import ROUNDS
from rdzv_core.backend import Snapshot

from rdzv_cli.agent import Agent, AgentOptions, AgentResult, ExitStatus


class Rank0:
    """A node that got rank 0, and has not yet said how many processes it runs."""

    def __init__(self, service: MemoryService) -> None:
        self.service = service
        self.handler = _handler(MemoryBackend(service), "a")
        self._thread = threading.Thread(target=self._join)
        self._thread.start()
        self.info: RendezvousInfo | None = None

    def _join(self) -> None:
        self.info = self.handler.next_rendezvous()

    def joined(self) -> RendezvousInfo:
        self._thread.join()
        assert self.info is not None
        assert self.info.rank == 0
        return self.info


@pytest.fixture
def rank_0() -> Iterator[Rank0]:
    rank_0 = Rank0(MemoryService())
    yield rank_0
    rank_0.handler.leave()


def _params(name: str) -> RendezvousParameters:
    return RendezvousParameters("memory", "", "run", 2, 2, node_name=name)


def _handler(backend: MemoryBackend, name: str) -> DynamicRendezvousHandler:
    return DynamicRendezvousHandler(RendezvousSettings.from_parameters(_params(name)), backend)


class Asked(MemoryBackend):
    """Counts what is asked about the store of the round."""

    def __init__(self, service: MemoryService) -> None:
        super().__init__(service)
        self.about_the_store = 0

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        self.about_the_store += prefix.startswith(f"{ROUNDS}/")
        return super().read_all(prefix, timeout=timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        self.about_the_store += prefix.startswith(f"{ROUNDS}/")
        return super().wait(prefix, since, timeout=timeout)


def _run(rank_0: Rank0, then: Callable[[RendezvousInfo], None], seconds: float) -> tuple[AgentResult, int]:
    """Run an agent of rank 1; `then` is called after it has waited for rank 0.

    Returns:
        How it ended, and how often it asked about the store while it waited.
    """
    backend = Asked(rank_0.service)
    agent = Agent(_handler(backend, "b"), _params("b"), ["true"], AgentOptions())
    asked = 0

    def wait() -> None:
        nonlocal asked
        info = rank_0.joined()
        deadline = time.monotonic() + 30
        while not backend.about_the_store:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(seconds)
        asked = backend.about_the_store
        then(info)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ending = agent.run()
    waiting.join()
    return ending, asked


def test_an_agent_that_waits_for_rank_0_asks_once(rank_0: Rank0) -> None:
    def finish(info: RendezvousInfo) -> None:
        info.store.set("rdzv.processes", "1")
        deadline = time.monotonic() + 30
        while not info.store.check(["rdzv.finished"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        rank_0.handler.shutdown()

    ending, asked = _run(rank_0, finish, 2.0)
    assert ending.exit_status is ExitStatus.DONE
    # It looks, and then waits.
    assert asked <= 2


@pytest.mark.parametrize(
    ("then", "exit_status"),
    [
        (lambda rank_0: os.kill(os.getpid(), signal.SIGTERM), ExitStatus.SIGNALLED),
        (lambda rank_0: rank_0.handler.set_closed("enough"), ExitStatus.CLOSED),
    ],
    ids=["signal", "closed"],
)
def test_what_happens_meanwhile_ends_the_wait_at_once(
    rank_0: Rank0, then: Callable[[Rank0], None], exit_status: ExitStatus
) -> None:
    happened: list[float] = []

    def happen(info: RendezvousInfo) -> None:
        happened.append(time.monotonic())
        then(rank_0)

    ending, _ = _run(rank_0, happen, 0.0)
    assert ending.exit_status is exit_status
    # Ten seconds is how long one question waits.
    assert time.monotonic() - happened[0] < 8
    deadline = time.monotonic() + 30
    while any(thread.name.startswith("rdzv-agent") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
