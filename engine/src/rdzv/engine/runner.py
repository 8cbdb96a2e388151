"""Runs the coroutines of one node on threads, against the real service."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from rdzv_core.backend import KeyValueBackend
from rdzv_core.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousError
from rdzv_core.threads import in_thread, start_thread

from ..hooks import Event
from . import aside, effects
from .aside import node_logger
from .client import RetryingClient
from .effects import Coroutine, Effect
from .leader import lead
from .node import Node
from .ranks import Order, RankAssignment

logger = node_logger(__name__)

_R = TypeVar("_R")


class Runner:
    """The threads of one node.

    What a coroutine does between two effects runs under the node's lock; the effects themselves do not, so
    a slow service delays only the coroutine that waits for it.
    """

    def __init__(self, node: Node, keys: KeyValueBackend, announce: Callable[[Sequence[Event]], None]) -> None:
        """Drive `node` over `keys`; `announce` hears of every event, and returns at once."""
        self._node = node
        self._client = RetryingClient(keys, node.id, self._on_connection_error, node.pauses)
        self._announce = announce
        self._ranks = RankAssignment()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Apart, so that who only sleeps is not woken by every step of the others.
        self._stopped = threading.Condition(self._lock)
        self._version = 0
        self._threads: list[threading.Thread] = []
        self._begun: set[str] = set()

    def start(self, name: str, coroutine: Coroutine[None]) -> None:
        """Run a coroutine on a thread of its own until it ends.

        Raises:
            RendezvousClosedError: The node ends.
            RendezvousConnectionError: The system has no room for another thread.
        """
        with self._lock:
            # Under the lock: `stop` joins what was started before it stops the node, and nothing starts after that.
            if self._node.stopped:
                raise RendezvousClosedError(f"The node '{self._node.id}' ends; it starts no loop any more.")
            thread = start_thread(self._run_to_end, name, coroutine, name=f"rdzv-{name}-{self._node.id}")
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def start_once(self, **loops: Coroutine[None]) -> None:
        """Start loops under their names, but for those that it has started before: there may have been no room for all.

        Raises:
            RendezvousError: As `start`.
        """
        for name, loop in loops.items():
            if name not in self._begun:
                self.start(name, loop)
                self._begun.add(name)

    @aside.speaking_aside
    def run(self, coroutine: Coroutine[_R]) -> _R:
        """Run a coroutine on the caller's thread; returns what it returns, raises what it raises."""
        result: Any = None
        error: BaseException | None = None
        effect: Effect | None = None
        while True:
            with self._lock:
                before, effect = effect, None
                try:
                    effect = coroutine.send(result) if error is None else coroutine.throw(error)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                finally:
                    if not effects.waits_on(before, effect):
                        self._version += 1
                        self._changed.notify_all()
                seen, result, error = self._version, None, None
            try:
                result = self._perform(effect, seen)
            except BaseException as raised:  # the coroutine decides what to do about it
                error = raised

    def member_until(self) -> float | None:
        """See `Node.member_until`."""
        # Under the lock: a node that registers anew has a lease before it knows what was formed meanwhile.
        with self._lock:
            return self._node.member_until()

    def stop(self, timeout: float) -> None:
        """End every coroutine: close the service under it, then wait for the threads.

        Args:
            timeout: Seconds to wait for each thread.
        """
        with self._lock:
            self._node.stop()
            threads = self._threads
            self._changed.notify_all()
            self._stopped.notify_all()
        self._client.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
                if thread.is_alive():
                    logger.warning("thread '%s' has not ended within %.1f s", thread.name, timeout)
        aside.flush()

    @aside.speaking_aside
    def _run_to_end(self, name: str, coroutine: Coroutine[None]) -> None:
        """Run a loop. The loops start again by themselves (`supervised`): what leaves one has ended it for good."""
        try:
            self.run(coroutine)
        except BaseException as error:
            if self._node.stopped and isinstance(error, RendezvousError):
                return
            with self._lock:
                self._node.failures.add(name, error, lasts=True)
                self._changed.notify_all()
            logger.exception("the loop '%s' of node '%s' has ended", name, self._node.id)

    def _on_connection_error(self, error: RendezvousConnectionError, lasted: float) -> None:
        """Note that the service did not answer; see `Connection.on_error`."""
        with self._lock:
            self._node.connection.on_error(error, lasted)

    def _pause(self, until: float, on: threading.Condition, ended: Callable[[], bool] = lambda: False) -> None:
        with self._lock:
            while not (ended() or self._node.stopped) and (remaining := until - time.monotonic()) > 0:
                on.wait(min(remaining, threading.TIMEOUT_MAX))

    def _await(self, deadline: float, answer: Future[Order]) -> None:
        """Wait for an answer, until the deadline or the end of the node."""
        answer.add_done_callback(lambda _: self._notify())
        self._pause(deadline, self._changed, answer.done)

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _perform(self, effect: Effect, seen: int) -> Any:
        client = self._client
        match effect:
            case effects.Sleep(until):
                return self._pause(until, self._stopped)
            case effects.WaitForChange(until):
                return self._pause(until, self._changed, lambda: self._version != seen)
            case effects.Emit(events):
                return self._announce(events)
            case effects.AssignRanks(arrived, previous, deadline):
                return self._ranks.order(arrived, previous, partial(self._await, deadline))
            case effects.SpawnLeader(term):
                return self.start("lead", lead(self._node, term))
            case effects.Wait(prefix, since, deadline):
                # Silence proves no contact, so a watch does not count as one.
                return client.wait(prefix, since, deadline)
            case effects.Together(calls):
                return self._call_all(calls)
            case effects.Call():
                return self._call(effect)

    def _call(self, call: effects.Call) -> Any:
        result = call.perform(self._client)
        if call.is_contact:
            with self._lock:
                self._node.connection.on_contact()
        return result

    def _call_all(self, calls: Sequence[effects.Call]) -> list[Any]:
        """Make calls on this thread and on others; see `effects.Together`."""
        answers: list[Any] = [None] * len(calls)
        left = list(enumerate(calls))[::-1]
        errors: list[BaseException] = []

        @aside.speaking_aside
        def work() -> None:
            while left and not errors:
                try:
                    number, call = left.pop()
                except IndexError:
                    return
                try:
                    answers[number] = self._call(call)
                except BaseException as error:  # the coroutine gets it, once all are over
                    errors.append(error)

        beside: list[Future[None]] = []
        # Where there is no room for a thread, the others do its work.
        with suppress(RendezvousConnectionError):
            while len(beside) < min(effects.AT_ONCE, len(calls)) - 1:
                beside.append(in_thread(work, f"rdzv-call-{self._node.id}"))
        work()
        wait(beside)
        if errors:
            raise errors[0]
        return answers
