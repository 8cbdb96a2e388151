"""What a machine lacks for a moment: room for a thread, a process or a file; a program that is just being replaced."""

import errno
import resource
import time
from collections.abc import Callable
from typing import Final, TypeVar

import rdzv

_T = TypeVar("_T")

PATIENCE: Final = 15.0
"""Seconds for which it is tried again."""

_PAUSE: Final = 0.25
"""Seconds between two tries."""

_SHORTAGES: Final = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_NO_THREAD: Final = "can't start new thread"
"""What Python says then; its class says nothing."""
_REPLACED: Final = (errno.ENOENT, errno.ETXTBSY, errno.ESTALE)


def outlast(start: Callable[[], _T], is_over: Callable[[], bool] = lambda: False) -> _T:
    """What `start` returns; if it fails by what may pass, it is tried again.

    Args:
        start: Starts a thread or a process.
        is_over: Whether that is of no use any more.

    Raises:
        OSError: It lasts, cannot pass, or is over.
        RendezvousConnectionError: The same of a thread.
    """
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            return start()
        except OSError as error:
            may_pass = error.errno in (*_SHORTAGES, *_REPLACED) or isinstance(error, rdzv.RendezvousConnectionError)
            if not may_pass or is_over() or time.monotonic() >= ends:
                raise
        time.sleep(_PAUSE)


def is_shortage(error: BaseException | None) -> bool:
    """Whether this machine lacks something, and not the service an answer: that is what an error comes from."""
    if isinstance(error, OSError) and error.errno in (*_SHORTAGES, errno.EADDRINUSE):
        return True
    return error is not None and (str(error) == _NO_THREAD or is_shortage(error.__cause__))


def explained(error: OSError) -> str:
    """An error of the system in words, with the limit that it met."""
    what = error.strerror or str(error)
    limits = {
        errno.EAGAIN: f"ulimit -u is {_limit(resource.RLIMIT_NPROC)}, and a container has pids.max",
        errno.EMFILE: f"ulimit -n is {_limit(resource.RLIMIT_NOFILE)}",
        errno.ENFILE: "the whole machine has fs.file-max",
    }
    return f"{what} ({limits[error.errno]})" if error.errno in limits else what


def not_started(error: OSError) -> str:
    """Why a program could not be started, in words."""
    hints = {
        errno.ENOENT: "it, or the interpreter that its first line names",
        errno.ENOEXEC: "its first line names no interpreter, as #!/bin/sh does",
    }
    hint = f" ({hints[error.errno]})" if error.errno in hints else ""
    return f"{explained(error)}{hint}"


def _limit(kind: int) -> str:
    soft, _ = resource.getrlimit(kind)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
