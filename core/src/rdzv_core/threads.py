"""Threads that work for the callers of a backend."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from .errors import RendezvousConnectionError

__all__ = ["in_thread", "start_thread"]

_T = TypeVar("_T")


def start_thread(work: Callable[..., None], *arguments: object, name: str) -> threading.Thread:
    """Have a thread of its own do some work; it does not keep the process alive.

    Raises:
        RendezvousConnectionError: The system has no room for another thread, which may be so for a moment.
    """
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise RendezvousConnectionError(f"The thread '{name}' cannot start: {error} (ulimit -u, pids.max).") from error
    return thread


def in_thread(work: Callable[[], _T], name: str) -> Future[_T]:
    """Have a thread of its own do some work that may outlast the caller's patience; returns its future.

    Raises:
        RendezvousConnectionError: As `start_thread`.
    """
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            # Of any class: the caller waits for this answer.
            answer.set_exception(error)

    start_thread(run, name=name)
    return answer
