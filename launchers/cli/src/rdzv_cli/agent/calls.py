"""A call to the service for which an agent waits on its main thread: a signal ends the wait, at the latest a second."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Final, TypeVar

import rdzv
from rdzv.shortages import outlast
from rdzv_core.threads import in_thread

from ..values import signal_name
from .signals import Asked, Signals
from .speaker import Speaker

_T = TypeVar("_T")

_NAME: Final = "rdzv-agent"
"""Of the threads that make the calls."""

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
    asked: Future[_T] = Future()
    try:
        asked = outlast(partial(in_thread, call, _NAME), lambda: bool(speaker.signals.number) or is_over())
    except rdzv.RendezvousConnectionError as error:
        if is_over():
            return None
        # That is the answer, unless a signal came meanwhile.
        asked.set_exception(error)
    while not speaker.signals.number:
        if wait([asked], _POLL).done:
            return asked.result()
        if is_over():
            return None
        speaker.drain_if_asked()
        waiting(time.monotonic() - started)
    # Leaving ends the wait too.
    unless_urgent(speaker.signals, lambda: speaker.handler.leave(signal_name(speaker.signals.number)))
    with contextlib.suppress(rdzv.RendezvousError):
        unless_urgent(speaker.signals, asked.result)
    return None


def unless_urgent(signals: Signals, call: Callable[[], _T]) -> _T | None:
    """What a call to the service returns; None if a second signal came first: then it goes on beside, unheard.

    A process that ends does not wait for it.
    """
    try:
        asked = in_thread(call, _NAME)
    except rdzv.RendezvousConnectionError:
        # There is no room for a thread.
        return call()
    while signals.asked is not Asked.END_AT_ONCE:
        if wait([asked], _POLL).done:
            return asked.result()
    return None
