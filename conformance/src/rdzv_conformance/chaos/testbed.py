"""The testbed: the agents, their fault proxies, the service, and what is to happen when."""

import heapq
import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ..processes import Processes, Worker
from ..servers import LocalService
from . import namespaces
from .agent import Job, live
from .corruption import corrupt_keys
from .history import OVER, EventLog, History
from .proxies import serve_proxies
from .refusals import Refusal
from .service import Service

if TYPE_CHECKING:
    from ..suite.server import Server


EVENT_LOG: Final = "chaos.jsonl"
"""The history of the run itself, beside those of the agents."""

_LOOK = 0.1
"""Seconds between two looks at what the agents have written."""

_READY = 60.0
"""Seconds that a server may take to come back."""


class AgentHandle:
    """The testbed's end of an agent.

    Attributes:
        name: Its name.
        healthy: It is neither paused nor partitioned, and has no orders to go.
        worker: Its process.
        reader: The process that reads its standard error.
    """

    def __init__(self, name: str, processes: Processes, worker: Worker, reader: Worker) -> None:
        self.name = name
        self.healthy = True
        self.worker = worker
        self.reader = reader
        self._processes = processes

    def tell(self, command: str, *arguments: Any) -> None:
        """Give it an order: a method of `agent.Agent`."""
        self.healthy = self.healthy and command not in ("leave", "shutdown")
        with suppress(OSError):  # it has just ended; that is seen from what it wrote
            self.worker.send([command, *arguments])

    def refuse(self, refusal: Refusal) -> None:
        """From now on the service refuses it such calls."""
        self.tell("refuse", refusal.name)

    def end(self) -> None:
        """kill -9."""
        self._processes.__exit__()


class Testbed:
    """A context manager that leaves nothing behind; for the main thread, since it minds signals.

    Attributes:
        job: What all agents have in common.
        service: Where they meet.
        size: How many agents there should be.
        attempt: The attempt of the agents that come now.
        handles: Those that live, by name.
        history: What they have written.
        proxies: The process with their ways to the service (see `proxies.Proxies`); None if it is not reached by TCP.
        isolated: Each of them has a network namespace of its own.
        faulted: The servers that are away.
        refusal: What the service refuses to an agent, or to all.
    """

    def __init__(self, job: Job, service: Service, folder: Path, size: int) -> None:
        self.job = job
        self.service = service
        self.size = size
        self.attempt = 0
        self.handles: dict[str, AgentHandle] = {}
        self.history = History(folder)
        self.proxies: Worker | None = None
        self.isolated = False
        self.faulted: list[Server] = []
        self.refusal = Refusal.NOTHING
        self._folder = folder
        self._numbers = itertools.count(1)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._interrupted = False
        self._cleanup = ExitStack()
        self._corrupting = False
        self._stalled: list[AgentHandle] = []
        self._refused_to_all = Refusal.NOTHING

    def __enter__(self) -> Self:
        """Begin."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._cleanup.callback(signal.signal, number, signal.signal(number, self._interrupt))
        self.isolated = bool(self.service.targets) and namespaces.are_possible()
        self.event_log = EventLog(self._folder / EVENT_LOG, "the run")
        self._cleanup.callback(self.event_log.close)
        corrupter = self.job.parameters(self.service.endpoint, "a stranger", 0)
        processes = self._cleanup.enter_context(Processes())
        self._corrupter = processes.fork(lambda link: corrupt_keys(link, corrupter))
        if self.service.targets:
            self.proxies = self._cleanup.enter_context(Processes()).fork(serve_proxies)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Kill every agent that is left."""
        for handle in list(self.handles.values()):
            handle.end()
        self._cleanup.close()

    @property
    def leader(self) -> str | None:
        """The agent that leads, as far as the others report."""
        told = (record.facts for record in reversed(self.history.records) if record.what == "learns")
        node: str | None = next((facts["node"] for facts in told if facts["kind"] == "leader changed"), None)
        return node and node.partition(".")[0]

    # Agents.

    def arrive(self) -> None:
        """A new agent comes."""
        name = f"agent{next(self._numbers)}"
        self.event_log.write("starts", who=name, attempt=self.attempt)
        processes, job, attempt, isolated = Processes(), self.job, self.attempt, self.isolated
        source, error = os.pipe()
        reader = processes.fork(lambda link: _read(source, self._folder / f"{name}.log"))
        worker = processes.fork(lambda link: live(link, job, name, attempt, self._folder, error, isolated))
        os.close(source)
        os.close(error)
        self.handles[name] = AgentHandle(name, processes, worker, reader)
        worker.receive()
        endpoint = self.service.endpoint
        if self.proxies:
            endpoint = ",".join(self.proxies.ask("open", name, self.service.targets, worker.pid if isolated else None))
        worker.send(endpoint)
        self.handles[name].refuse(self._refused_to_all)

    def kill(self, handle: AgentHandle) -> None:
        """kill -9."""
        self.event_log.write("is killed", who=handle.name)
        self._remove(handle)

    def _remove(self, handle: AgentHandle) -> None:
        handle.healthy = False
        handle.end()
        self.history.end(handle.name)
        del self.handles[handle.name]
        if self.proxies:
            self.proxies.ask("close", handle.name)

    def pause(self, handle: AgentHandle) -> None:
        """SIGSTOP."""
        handle.healthy = False
        self.event_log.write("stands still", who=handle.name)
        handle.worker.pause()

    def resume(self, handle: AgentHandle) -> None:
        """SIGCONT."""
        if handle.name in self.handles:
            handle.worker.resume()
            self._is_healthy(handle)

    def partition(self, handle: AgentHandle, how: str) -> None:
        """Partition it; see `Proxies.partition`."""
        assert self.proxies
        handle.healthy = False
        self.event_log.write("is cut off", who=handle.name, how=how)
        self.proxies.ask("partition", handle.name, how)

    def slow(self, handle: AgentHandle, seconds: float) -> None:
        """Have each answer come so many seconds later to it."""
        if handle.name in self.handles and self.proxies:
            self.event_log.write("is slow", who=handle.name, seconds=seconds)
            self.proxies.ask("slow", handle.name, seconds)

    def heal(self, handle: AgentHandle, lose: bool) -> None:
        """Heal its partition; see `Proxies.heal`."""
        if handle.name in self.handles and self.proxies:
            self.proxies.ask("heal", handle.name, lose)
            self._is_healthy(handle)

    def _is_healthy(self, handle: AgentHandle) -> None:
        handle.healthy = True
        self.event_log.write("goes on", who=handle.name)

    def stall(self, handle: AgentHandle) -> bool:
        """Stop the reader of its standard error, which is full at once; False if that is so already."""
        if handle in self._stalled:
            return False
        self._stalled.append(handle)
        self.event_log.write("is not read", who=handle.name)
        handle.reader.pause()
        handle.tell("chatter")
        return True

    def read_on(self) -> None:
        """Have every agent's standard error read again."""
        for handle in self._stalled:
            if handle.name in self.handles:
                self.event_log.write("is read", who=handle.name)
                handle.reader.resume()
        self._stalled.clear()

    def leave(self, handle: AgentHandle) -> None:
        """Tell it to go."""
        handle.tell("leave", "it had orders to")

    # Servers.

    def fault_member(self, member: "Server", dies: bool, seconds: float) -> None:
        """Kill or freeze a server, and have it back after some seconds."""
        name = f"server{self.service.members.index(member)}"
        self.faulted.append(member)
        self.event_log.write("is killed" if dies else "stands still", who=name)
        (member.kill if dies else member.pause)()

        def back() -> None:
            # Alone, a member of a cluster would wait for the others.
            (getattr(member, "relaunch", member.restart) if dies else member.resume)()
            self.faulted.remove(member)
            self.event_log.write("goes on", who=name)

        self.after(seconds, back)

    def await_servers(self) -> None:
        """Return when every server serves."""
        deadline = time.monotonic() + _READY
        for member in self.service.members:
            if isinstance(member, LocalService):
                member._await_ready(deadline)

    def refuse(self, refusal: Refusal, one: AgentHandle | None) -> None:
        """From now on the service refuses such calls, to one agent, or (None) to all and to those that come."""
        self.refusal = refusal
        self._refused_to_all = Refusal.NOTHING if one else refusal
        for handle in [one] if one else self.handles.values():
            handle.refuse(refusal)

    # What is written.

    def corrupt(self, key: str, seconds: float) -> bool:
        """Write over a key, and put it back after some seconds; False if one is corrupted already."""
        if not self._is_restored(0.0):
            return False
        self._corrupting = True
        self.event_log.write("is corrupted", key=key, seconds=seconds)
        self._corrupter.send([key, seconds])
        self.after(seconds, lambda: None)
        return True

    def await_restored(self) -> None:
        """Return when no key is corrupted.

        Raises:
            TimeoutError: One still is.
        """
        if not self._is_restored(_READY):
            raise TimeoutError("What was written over could not be put back.")

    def _is_restored(self, timeout: float) -> bool:
        if self._corrupting:
            with suppress(TimeoutError):
                self._corrupter.receive(timeout)
                self._corrupting = False
        return not self._corrupting

    # Time.

    def _interrupt(self, number: int, frame: object) -> None:
        # An exception in the middle of a fork would be lost, or go on in the child.
        self._interrupted = True

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._ticket), action))

    def pass_time(self, until: Callable[[], bool]) -> None:
        """Do what is due and retire who has ended, until a condition holds.

        Raises:
            KeyboardInterrupt: There was a SIGINT or a SIGTERM, now or before.
        """
        while not until():
            if self._interrupted:
                raise KeyboardInterrupt
            now = time.monotonic()
            if self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
                continue
            self._look()
            due = self._timers[0][0] if self._timers else now + _LOOK
            time.sleep(max(0.0, min(_LOOK, due - time.monotonic())))

    def nothing_is_due(self) -> bool:
        """Whether all that was to be done later is done."""
        return not self._timers

    def _look(self) -> None:
        self.history.refresh()
        for handle in list(self.handles.values()):
            last = self.history.last.get(handle.name)
            if last is not None and last.what in OVER:
                self._remove(handle)


def _read(source: int, path: Path) -> None:
    """The life of the process that reads an agent's standard error, into a file."""
    with path.open("wb", buffering=0) as log:
        while said := os.read(source, 65536):
            log.write(said)
