"""Signals to a node that is in a call to rdzv."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

from torch.distributed.elastic.multiprocessing import SignalException

_T = TypeVar("_T")

_NAMES: Final = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""Unless torchrun says otherwise; older ones do not say it."""


class _SignalError(BaseException):
    """Takes what a signal's handler has raised past every ``except Exception`` on the way out."""

    def __init__(self, error: Exception, handlers: "_Handlers") -> None:
        super().__init__(error)
        self.error = error
        self.handlers = handlers


def ended_by_signals(call: Callable[[], _T], *, unhandled: bool = False) -> _T:
    """Make a call that ends when a handler of a signal raises an exception, whatever the call would do about that.

    torchrun's handler raises a `SignalException`, which is an `Exception`, in whatever code its main thread runs.
    Code that tries again after any error of a service would try again after this one, too.

    Args:
        call: What to do. On another thread than the main one, where no handler runs, it is just done.
        unhandled: Signals that have no handler end it, too. torchrun has none before it starts its first workers. Then
            a signal would end the process at once, and the others would count on a node that is gone until its lease
            is over.

    Raises:
        Exception: What the handler has raised: a `SignalException`, if it is torchrun's.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    handlers = _Handlers()
    # All in one frame: a signal may come at any moment, and between two of them its error would not be caught.
    try:
        try:
            handlers.replace(unhandled)
            return call()
        finally:
            handlers.restore()
    except _SignalError as met:
        # Also where it came in the middle of restoring.
        handlers.ends_calls = False
        if met.handlers is not handlers:
            # This call is part of another one.
            handlers.restore()
            raise
        error = met.error.with_traceback(met.__traceback__)
    handlers.restore()
    try:
        raise error
    finally:
        # It knows this frame.
        del error


class _Handlers:
    """The handlers of torchrun's signals during a call."""

    def __init__(self) -> None:
        self.ends_calls = True
        self._before: dict[signal.Signals, Any] = {}

    def replace(self, unhandled: bool) -> None:
        """Have the call ended by what the handlers raise; where there is none, by what torchrun's would."""
        names = [name.strip() for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _NAMES).split(",")]
        for one in [signal.Signals[name] for name in names if name in signal.Signals.__members__]:
            handler = signal.getsignal(one)
            if callable(handler) or (unhandled and handler is signal.SIG_DFL):
                self._before[one] = handler
                signal.signal(one, self._handle)

    def restore(self) -> None:
        """Put back the handlers, unless one of them has put another in its place."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        handler = self._before.get(signal.Signals(number), signal.SIG_DFL)
        try:
            if callable(handler):
                handler(number, frame)
            else:
                raise SignalException(f"Process {os.getpid()} got signal: {number}", sigval=signal.Signals(number))
        except Exception as error:
            if not self.ends_calls:
                raise
            raise _SignalError(error, self) from error
