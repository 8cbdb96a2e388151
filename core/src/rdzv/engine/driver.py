"""Runs the lanes of one node on threads, against the real service."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import RendezvousClosedError, RendezvousConnectionError, RendezvousError
from ..hooks import Event
from ..threads import start_thread
from . import steps
from .leader import lead
from .node import Node
from .outage import Outage
from .service import Service
from .steps import Lane, Step

__all__ = ["Driver"]

logger = logging.getLogger(__name__)

_R = TypeVar("_R")


class Driver:
    """The threads of one node.

    What a lane does between two steps runs under the node's lock; the steps themselves do not, so
    a slow service delays only the lane that waits for it.
    """

    def __init__(self, node: Node, service: Service, tell: Callable[[Event], None]) -> None:
        """Drive `node` over `service`; `tell` hears of every event."""
        self._node = node
        self._service = service
        self._tell = tell
        self._outage = Outage(node.settings.run, node.backend)
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        # Apart, so that who only sleeps is not woken by every step of the others.
        self._stopped = threading.Condition(lock)
        self._version = 0
        self._threads: list[threading.Thread] = []

    def start(self, name: str, lane: Lane[None]) -> None:
        """Run a lane on a thread of its own until it ends.

        Raises:
            RendezvousClosedError: The node ends.
            RendezvousConnectionError: The system has no room for another thread.
        """
        with self._changed:
            # Under the lock: `stop` joins what was started before it closes the node, and nothing starts after that.
            if self._node.closing:
                raise RendezvousClosedError(f"The node '{self._node.id}' ends; it starts no loop any more.")
            thread = start_thread(self._run_to_end, name, lane, name=f"rdzv-{name}-{self._node.id}")
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def run(self, lane: Lane[_R]) -> _R:
        """Run a lane on the caller's thread; returns what it returns, raises what it raises."""
        result: Any = None
        error: BaseException | None = None
        step: Step | None = None
        while True:
            with self._changed:
                before, step = step, None
                try:
                    step = lane.send(result) if error is None else lane.throw(error)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                finally:
                    # A lane that only looked and waits on has changed nothing; were the others told,
                    # two such lanes would wake each other for ever.
                    if not (isinstance(before, steps.Changed) and isinstance(step, steps.Changed)):
                        self._version += 1
                        self._changed.notify_all()
                seen = self._version
            result, error = None, None
            try:
                result = self._perform(step, seen)
            except BaseException as raised:  # the lane decides what to do about it
                error = raised

    def troubled(self, error: RendezvousConnectionError) -> None:
        """Note that the service did not answer."""
        with self._changed:
            self._node.troubled(error)
            self._outage.troubled(error)

    def stop(self, timeout: float) -> None:
        """End every lane: close the service under it, then wait for the threads.

        Args:
            timeout: Seconds to wait for each thread.
        """
        with self._changed:
            self._node.closing = True
            threads = self._threads
            self._changed.notify_all()
            self._stopped.notify_all()
        self._service.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
                if thread.is_alive():
                    logger.warning("thread '%s' has not ended within %.1f s", thread.name, timeout)

    def _run_to_end(self, name: str, lane: Lane[None]) -> None:
        """Run a loop. The loops start again by themselves (`supervised`): what leaves one has ended it for good."""
        try:
            self.run(lane)
        except BaseException as error:
            if self._node.closing and isinstance(error, RendezvousError):
                return
            logger.exception("the loop '%s' of node '%s' has ended", name, self._node.id)
            with self._changed:
                self._node.fail(name, error, lasts=True)
                self._changed.notify_all()

    def _pause(self, until: float, on: threading.Condition, ended: Callable[[], bool] = lambda: False) -> None:
        with on:
            while not (ended() or self._node.closing) and (remaining := until - time.monotonic()) > 0:
                on.wait(min(remaining, threading.TIMEOUT_MAX))

    def _perform(self, step: Step, seen: int) -> Any:
        service = self._service
        match step:
            case steps.Sleep(until):
                return self._pause(until, self._stopped)
            case steps.Changed(until):
                return self._pause(until, self._changed, lambda: self._version != seen)
            case steps.Tell(events):
                return [self._tell(event) for event in events]
            case steps.Lead(term):
                return self.start("lead", lead(self._node, term))
            case steps.Wait(prefix, since, deadline):
                # Silence is no sign of life, so a watch does not count as contact.
                return service.wait(prefix, since, deadline)
            case _:
                result = call(service, step)
        with self._changed:
            self._node.contacted()
            self._outage.contacted()
        return result


def call(service: Service, step: Step) -> Any:
    """The one call to the service that a step stands for."""
    match step:
        case steps.Read(key, deadline):
            return service.read(key, deadline)
        case steps.ReadAll(prefix, deadline, before):
            return service.read_all(prefix, deadline, before)
        case steps.Put(key, payload, deadline, after, lease, deleted):
            return service.put(key, payload, deadline, after=after, lease=lease, deleted=deleted)
        case steps.Delete(prefix, deadline):
            return service.delete(prefix, deadline)
        case steps.OpenLease(ttl, deadline):
            return service.open_lease(ttl, deadline)
        case steps.KeepAlive(lease, deadline):
            return service.keep_alive(lease, deadline)
        case steps.Revoke(lease, deadline):
            return service.revoke(lease, deadline)
    raise TypeError(f"{step!r} is no call")
