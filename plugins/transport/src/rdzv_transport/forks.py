"""What a fork must not end: objects whose threads it has not copied; and what it must not interrupt: OpenSSL."""

import ctypes
import os
import threading
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

_T = TypeVar("_T")

NO_FORK: Final = threading.RLock()
"""Held around a call of OpenSSL, which must not wait for anything: a fork of another thread begins after it.

OpenSSL has locks for the whole process, such as that of its random numbers. A child would inherit them as they are, and
the first handshake of its own would wait for a thread that it does not have. A signal's handler that interrupts
the owner may fork: then no call is going on.
"""


class _Forking(threading.local):
    """What must outlive the fork that this thread is about to make."""

    def __init__(self) -> None:
        self.things: list[Any] = []


_kept: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
_forking: Final = _Forking()


def keep_in_children(thing: _T) -> _T:
    """Never free `thing` in a fork's child; in this process it is freed as ever.

    The end of an object that runs threads waits for them, and a child has none of them: there it ends the whole
    process. That happens wherever the child collects garbage, even if the object was garbage before the fork.

    Args:
        thing: Must support weak references.

    Returns:
        The same.
    """
    _kept[id(thing)] = thing
    return thing


def _before_fork() -> None:
    NO_FORK.acquire()
    # A weak reference finds garbage, too, as long as it is not collected; and may be collected before the child's turn.
    _forking.things = [thing for ref in _kept.valuerefs() if (thing := ref()) is not None]


def _after_in_parent() -> None:
    _forking.things = []
    NO_FORK.release()


def _after_in_child() -> None:
    # A reference that no object holds is never given up, not even when the interpreter ends.
    for thing in _forking.things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _forking.things = []
    NO_FORK.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
