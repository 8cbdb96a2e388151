"""Signals to a node that waits for its first world."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from torch.distributed.elastic.multiprocessing import SignalException

__all__ = ["signals_end_the_wait"]

_NAMES: Final = "SIGTERM,SIGHUP,SIGQUIT"
"""Unless torchrun says otherwise; older ones do not say it."""


@contextmanager
def signals_end_the_wait() -> Iterator[None]:
    """Raise what torchrun raises when a signal comes.

    It does so by itself from its first workers on. Before that, a signal would end the process at
    once, and the others would count on a node that is gone until its lease is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _NAMES).split(",")
    known = [signal.Signals[name] for name in names if name in signal.Signals.__members__]
    ours = [one for one in known if signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, _raise)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    raise SignalException(f"Process {os.getpid()} got signal: {number}", sigval=signal.Signals(number))
