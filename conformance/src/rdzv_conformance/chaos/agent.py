"""An agent: a process with the real handler, which joins, holds its world, and joins again when it should.

A small loop instead of `rdzv run`, because its history is finer: `rdzv run` would add the time that its
program needs to start and to stop to every round, and could not write down what only the node knows.
"""

import contextlib
import logging
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rdzv import create_handler
from rdzv.hooks import Event, hookimpl, register_hooks
from rdzv.registry import create_backend
from rdzv.store import KeyValueStore
from rdzv_core.backend import KeyValueBackend
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rdzv_core.handler import RendezvousInfo
from rdzv_core.parameters import RendezvousParameters

from ..flaky import Errors, flaky
from ..processes import Link
from .history import EventLog
from .namespaces import isolate
from .refusals import Permissions, Refusal, guarded

logger = logging.getLogger(__name__)

_DAY: Final = 86400.0
_LINE: Final = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
_LOOK: Final = 0.02
"""Seconds between two looks at whether to join again."""

_CLEAN_UP: Final = 0.3
"""Seconds at most that a program needs to stop before it joins again."""

_MUCH: Final = b"and so on, " * 20_000
"""More than a pipe holds."""

_KEPT: Final = 4
"""Times to live for which a node that was paused meanwhile may still tell of an error."""


@dataclass(frozen=True)
class Job:
    """What all agents of a run have in common.

    Attributes:
        backend: The name of the backend.
        run_id: Which run.
        min_nodes: The smallest world.
        max_nodes: The largest.
        ttl: Seconds after which a silent node is dead.
        options: Further options, of rdzv and of the backend.
    """

    backend: str
    run_id: str
    min_nodes: int
    max_nodes: int
    ttl: float
    options: Mapping[str, Any]

    def parameters(self, endpoint: str, name: str, attempt: int) -> RendezvousParameters:
        """One agent's parameters."""
        config = {
            "keep_alive_interval": self.ttl / 3,
            "keep_alive_max_attempt": 3,
            "heartbeat_timeout": self.ttl,
            "last_call_timeout": 1.0,
            # A node that waits too long must be seen waiting, as a lack of progress.
            "join_timeout": _DAY,
            **self.options,
            "attempt": attempt,
            "node_name": name,
        }
        return RendezvousParameters(self.backend, endpoint, self.run_id, self.min_nodes, self.max_nodes, None, **config)


def live(link: Link, job: Job, name: str, attempt: int, folder: Path, error: int, isolated: bool) -> None:
    """The life of an agent, in a process of its own: it takes orders over `link` until it is killed.

    Args:
        link: First it says that it is there, then it receives the endpoint, then orders.
        job: What all agents have in common.
        name: Its own name.
        attempt: The scheduler's restart count.
        folder: Where it writes its history.
        error: The descriptor that becomes its standard error.
        isolated: Whether it lives in a network namespace of its own.
    """
    # Ctrl-C on the terminal is for the parent process, which then kills this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(error, 2)
    log = open(2, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    logging.basicConfig(format=_LINE, level=logging.DEBUG, stream=log, force=True)
    if isolated:
        isolate()
    link.send()
    endpoint = link.receive(_DAY)
    event_log = EventLog(folder / f"{name}.jsonl", name)
    try:
        agent = Agent(job.parameters(endpoint, name, attempt), event_log, job.ttl)
        threading.Thread(target=agent.work, daemon=True).start()
        while True:
            command, *arguments = link.receive(_DAY)
            getattr(agent, command)(*arguments)
    except Exception:
        event_log.write("broke", text=traceback.format_exc())


class Agent:
    """One agent: its work on one thread, its orders on another."""

    def __init__(self, parameters: RendezvousParameters, event_log: EventLog, ttl: float) -> None:
        """Make its handler; `ttl` is the time to live in seconds, and how long it waits for the round's store."""
        backend, store = create_backend(parameters)
        self._errors = Errors(random.Random())  # noqa: S311 - no secret
        self._permissions = Permissions()
        if isinstance(backend, KeyValueBackend):
            backend = guarded(backend, self._permissions)
            # The errors are for the engine; a round's store is kept on the backend as the service has it.
            store = KeyValueStore(backend) if store is None else store
            backend = flaky(backend, self._errors)
        self._handler = create_handler(store, backend, parameters)
        self._event_log = event_log
        self._ttl = ttl
        self._failing = threading.Event()
        self._leaving = False
        self._stumbled = False
        self._telling = threading.Lock()
        register_hooks(self)

    @hookimpl
    def rdzv_event(self, event: Event) -> None:
        """The handler's events."""
        self._event_log.write("learns", kind=event.kind.value, round=event.round, node=event.node, cause=event.cause)
        logger.info("%s", event)

    # Its orders.

    def fail(self) -> None:
        """Its program fails, so it joins again."""
        self._event_log.write("fails")
        self._failing.set()

    def err(self, chance: float) -> None:
        """From now on, so many of its calls fail."""
        self._event_log.write("errs", chance=chance, so_far=self._errors.count)
        self._errors.chance = chance

    def refuse(self, refusal: str) -> None:
        """From now on the service refuses such calls of it: the name of a `Refusal`."""
        self._event_log.write("is denied", calls=refusal.lower())
        self._permissions.refused = Refusal[refusal]

    def chatter(self) -> None:
        """Its program says more than its standard error holds, if that is not read."""
        threading.Thread(target=os.write, args=(2, _MUCH), daemon=True).start()

    def close(self, reason: str) -> None:
        """Close the run."""
        self._event_log.write("closes", reason=reason)
        with contextlib.suppress(RendezvousError), self._forgiving():
            self._handler.set_closed(reason)
            self._event_log.write("has closed", reason=reason)

    def shutdown(self) -> None:
        """The job is done: close the run if it is in it, and go."""
        self._event_log.write("closes", reason="the job is done")
        self._go(self._handler.shutdown)

    def leave(self, reason: str) -> None:
        """Go, and let the others go on."""
        self._go(lambda: self._handler.leave(reason))

    def _go(self, goes: Any) -> None:
        with self._telling:
            self._leaving = True
            self._event_log.write("leaves")
        told = False
        with self._forgiving():
            told = goes()
        self._event_log.write("has left", told=told)

    # What it does by itself.

    def work(self) -> None:
        """Take part until the run is closed, or until it has orders to go."""
        try:
            goes_on = True
            while goes_on:
                with self._forgiving():
                    goes_on = self._take_part()
                time.sleep(random.uniform(0.0, _CLEAN_UP))  # noqa: S311 - no secret
        except RendezvousError as error:
            if not self._leaving:
                self._event_log.write("refused", error=type(error).__name__, text=str(error), **self._reason())
        except Exception:
            self._event_log.write("broke", text=traceback.format_exc())

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Take no offence at what a call raises because the backend has just raised, or because a stranger writes."""
        try:
            yield
        except (RendezvousClosedError, RendezvousGracefulExitError, RendezvousDeniedError):
            raise
        except Exception as error:
            is_stranger = isinstance(error, RendezvousStateError)
            if not is_stranger and time.monotonic() - self._errors.last > _KEPT * self._ttl:
                raise
            self._stumbled = True
            self._event_log.write("stumbles", error=repr(error))

    def _take_part(self) -> bool:
        """Join and hold the world; whether to join again."""
        with self._telling:
            if self._leaving:
                return False
            self._event_log.write("joins")
        info = self._handler.next_rendezvous()
        where, mine = info.bootstrap_store_info, self._handler.view.record
        self._event_log.write(
            "returns",
            round=info.round,
            rank=info.rank,
            size=info.world_size,
            nodes=info.nodes,
            address=where and f"{where.master_addr}:{where.master_port}",
            # The world may be the one that a call which has stumbled asked for, at the address that it offered.
            offers=None if self._stumbled or not mine else f"{mine.address}:{mine.port}",
        )
        self._stumbled = False
        self._share(info)
        return self._hold(info)

    def _share(self, info: RendezvousInfo) -> None:
        """Leave a mark in the round's store, unless one is there already."""
        info.store.set_timeout(timedelta(seconds=self._ttl))
        # A member that is cut off has nothing to say about the store.
        with contextlib.suppress(RendezvousConnectionError, RendezvousTimeoutError):
            mark = info.store.compare_set("mark", b"", self._handler.view.node_id.encode()).decode()
            self._event_log.write("shares", round=info.round, size=info.world_size, mark=mark)

    def _hold(self, info: RendezvousInfo) -> bool:
        """Hold the world until there is to be another one, or none."""
        sure_until = 0.0
        while not self._leaving:
            sure_until = self._note_trust(info, sure_until)
            if self._handler.is_closed():
                self._event_log.write("hears", **self._reason())
                self.leave("the run is closed")
                return False
            if self._failing.is_set() or self._handler.num_nodes_waiting() > 0:
                self._failing.clear()
                return True
            time.sleep(_LOOK)
        return False

    def _note_trust(self, info: RendezvousInfo, before: float) -> float:
        """Write down until when the lease certainly lives, if that has changed; returns that moment."""
        # Before it is asked, for what is true then may be wrong a moment later.
        now = time.monotonic()
        until = self._handler.view.member_until
        if until is None or until == before:
            return before
        self._event_log.write("trusts", at=now, round=info.round, size=info.world_size, until=until)
        return until

    def _reason(self) -> dict[str, Any]:
        closed = self._handler.view.closed
        return {"by": closed.by, "reason": closed.reason} if closed else {"by": None, "reason": None}
