"""A call to the service for which an agent waits on its main thread: a signal ends the wait."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

import rdzv

from .speaker import Speaker
from .workers import signal_name

_T = TypeVar("_T")

_POLL: Final = 0.05
"""Seconds between two looks for a signal."""


def until_signalled(
    speaker: Speaker,
    call: Callable[[], _T],
    waiting: Callable[[float], None] = lambda seconds: None,
    is_over: Callable[[], bool] = lambda: False,
) -> _T | None:
    """What a call to the service returns; None if a signal came first, for which the node leaves.

    Args:
        speaker: Of the node; while it waits, it says that the node drains if it is asked to.
        call: The call.
        waiting: Called now and then with the seconds so far.
        is_over: Whether there is no point in waiting on, so that None is returned. The call then ends by itself.
    """
    if speaker.signals.number:
        # It came while nothing was asked, such as while the workers ended.
        return None
    started = time.monotonic()
    pool = ThreadPoolExecutor(1, "rdzv-agent")
    try:
        asked: Future[_T] = pool.submit(call)
        while not speaker.signals.number:
            if wait([asked], _POLL).done:
                return asked.result()
            if is_over():
                return None
            speaker.drain_if_asked()
            waiting(time.monotonic() - started)
        # Leaving ends the wait too.
        speaker.handler.leave(signal_name(speaker.signals.number))
        with contextlib.suppress(rdzv.RendezvousError):
            asked.result()
        return None
    finally:
        pool.shutdown(wait=False)
