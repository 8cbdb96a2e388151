"""The stage: the agents, their lines, the service, and what is to happen when."""

import heapq
import itertools
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
from .history import OVER, Diary, History
from .lines import Lines
from .service import Service
from .vandal import vandalize

if TYPE_CHECKING:
    from ..suite.server import Server

__all__ = ["DIARY", "Player", "Stage"]

DIARY: Final = "chaos.jsonl"
"""The history of the run itself, beside those of the agents."""

_LOOK = 0.1
"""Seconds between two looks at what the agents have written."""

_READY = 60.0
"""Seconds that a server may take to come back."""


class Player:
    """The stage's end of an agent.

    Attributes:
        name: Its name.
        well: It is neither paused nor cut off, and not told to go.
    """

    def __init__(self, name: str, processes: Processes, worker: Worker) -> None:
        self.name = name
        self.well = True
        self.worker = worker
        self._processes = processes

    def tell(self, command: str, *arguments: Any) -> None:
        """Tell it what to do: a method of `agent.Agent`."""
        self.well = self.well and command not in ("leave", "shutdown")
        with suppress(OSError):  # it has just ended; that is seen from what it wrote
            self.worker.send([command, *arguments])

    def end(self) -> None:
        """kill -9."""
        self._processes.__exit__()


class Stage:
    """A context manager that leaves nothing behind; for the main thread, since it minds signals.

    Attributes:
        job: What all agents are told.
        service: Where they meet.
        size: How many agents there should be.
        attempt: The attempt of the agents that come now.
        players: Those that live, by name.
        history: What they have written.
        lines: Their ways to the service; None if it is not reached by TCP.
        alone: Each of them has a network namespace of its own.
        hurt: The servers that are away.
    """

    def __init__(self, job: Job, service: Service, folder: Path, size: int) -> None:
        self.job = job
        self.service = service
        self.size = size
        self.attempt = 0
        self.players: dict[str, Player] = {}
        self.history = History(folder)
        self.lines: Lines | None = None
        self.alone = False
        self.hurt: list[Server] = []
        self._folder = folder
        self._numbers = itertools.count(1)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._interrupted = False
        self._cleanup = ExitStack()
        self._spoiling = False

    def __enter__(self) -> Self:
        """Begin."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._cleanup.callback(signal.signal, number, signal.signal(number, self._interrupt))
        self.alone = bool(self.service.targets) and namespaces.are_possible()
        self.diary = Diary(self._folder / DIARY, "the run")
        self._cleanup.callback(self.diary.close)
        vandal = self.job.parameters(self.service.endpoint, "a stranger", 0)
        processes = self._cleanup.enter_context(Processes())
        self._vandal = processes.fork(lambda link: vandalize(link, vandal))
        if self.service.targets:
            self.lines = Lines(self._cleanup.enter_context(Processes()))
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Kill every agent that is left."""
        for player in list(self.players.values()):
            player.end()
        self._cleanup.close()

    @property
    def leader(self) -> str | None:
        """The agent that leads, as far as the others have told."""
        told = (record.facts for record in reversed(self.history.records) if record.what == "learns")
        node: str | None = next((facts["node"] for facts in told if facts["kind"] == "leader changed"), None)
        return node and node.partition(".")[0]

    # Agents.

    def arrive(self) -> None:
        """A new agent comes."""
        name = f"agent{next(self._numbers)}"
        self.diary.write("starts", who=name, attempt=self.attempt)
        processes, job, attempt, alone = Processes(), self.job, self.attempt, self.alone
        worker = processes.fork(lambda link: live(link, job, name, attempt, self._folder, alone))
        self.players[name] = Player(name, processes, worker)
        worker.receive()
        endpoint = self.service.endpoint
        if self.lines:
            endpoint = ",".join(self.lines.open(name, self.service.targets, worker.pid if alone else None))
        worker.send(endpoint)

    def kill(self, player: Player) -> None:
        """kill -9."""
        self.diary.write("is killed", who=player.name)
        self._remove(player)

    def _remove(self, player: Player) -> None:
        player.well = False
        player.end()
        self.history.end(player.name)
        del self.players[player.name]
        if self.lines:
            self.lines.close(player.name)

    def pause(self, player: Player) -> None:
        """SIGSTOP."""
        player.well = False
        self.diary.write("stands still", who=player.name)
        player.worker.pause()

    def resume(self, player: Player) -> None:
        """SIGCONT."""
        if player.name in self.players:
            player.worker.resume()
            self._is_well(player)

    def cut(self, player: Player, how: str) -> None:
        """Cut its line; see `Lines.cut`."""
        assert self.lines
        player.well = False
        self.diary.write("is cut off", who=player.name, how=how)
        self.lines.cut(player.name, how)

    def heal(self, player: Player, lose: bool) -> None:
        """Mend its line; see `Lines.heal`."""
        if player.name in self.players and self.lines:
            self.lines.heal(player.name, lose)
            self._is_well(player)

    def _is_well(self, player: Player) -> None:
        player.well = True
        self.diary.write("goes on", who=player.name)

    def leave(self, player: Player) -> None:
        """Tell it to go."""
        player.tell("leave", "it was told to")

    # Servers.

    def hurt_member(self, member: "Server", dies: bool, seconds: float) -> None:
        """Kill or freeze a server, and have it back after some seconds."""
        name = f"server{self.service.members.index(member)}"
        self.hurt.append(member)
        self.diary.write("is killed" if dies else "stands still", who=name)
        (member.kill if dies else member.pause)()

        def back() -> None:
            # Alone, a member of a cluster would wait for the others.
            (getattr(member, "relaunch", member.restart) if dies else member.resume)()
            self.hurt.remove(member)
            self.diary.write("goes on", who=name)

        self.after(seconds, back)

    def await_servers(self) -> None:
        """Return when every server serves."""
        deadline = time.monotonic() + _READY
        for member in self.service.members:
            if isinstance(member, LocalService):
                member._await_ready(deadline)

    # What is written.

    def spoil(self, key: str, seconds: float) -> bool:
        """Write over a key, and put it back after some seconds; False if one is spoiled already."""
        if not self._is_mended(0.0):
            return False
        self._spoiling = True
        self.diary.write("is spoiled", key=key, seconds=seconds)
        self._vandal.send([key, seconds])
        self.after(seconds, lambda: None)
        return True

    def await_mended(self) -> None:
        """Return when no key is spoiled.

        Raises:
            TimeoutError: One still is.
        """
        if not self._is_mended(_READY):
            raise TimeoutError("What was written over could not be put back.")

    def _is_mended(self, timeout: float) -> bool:
        if self._spoiling:
            with suppress(TimeoutError):
                self._vandal.receive(timeout)
                self._spoiling = False
        return not self._spoiling

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
        for player in list(self.players.values()):
            last = self.history.last.get(player.name)
            if last is not None and last.what in OVER:
                self._remove(player)
