"""What nodes say aside: their log lines and events. Handlers and plugins take them on threads of their own, so that one
that hangs holds up no node: neither the lock between two effects, nor a loop, nor a caller who waits for a world."""

import atexit
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Final, ParamSpec, TypeVar

from ..backlog import Backlog

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FLUSH: Final = 1.0
"""Seconds in which what was said is taken at the end of a node."""


def node_logger(name: str) -> logging.Logger:
    """The logger of a module whose code runs in nodes: what it says while a node runs is said aside."""
    logger = logging.getLogger(name)
    logger.addFilter(_put_aside)
    return logger


def adopt_loggers() -> None:
    """Make such loggers of all that there are: those of a backend and of what it uses, whose calls run in nodes."""
    for logger in [*logging.root.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger):
            logger.addFilter(_put_aside)


def speaking_aside(work: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have what `work` logs said aside: it runs a part of a node, or makes a call for one, on its caller's thread."""

    @wraps(work)
    def aside(*arguments: _P.args, **named: _P.kwargs) -> _R:
        before, _here.runs_node = _here.runs_node, True
        try:
            return work(*arguments, **named)
        finally:
            _here.runs_node = before

    return aside


def announce(events: Iterable[Callable[[], None]]) -> None:
    """Have plugins take events."""
    for take in events:
        _events.add(take)


def flush() -> None:
    """Wait until all that was said is taken, but not for one that hangs."""
    _events.flush(_FLUSH)
    _lines.flush(_FLUSH)


class _Here(threading.local):
    runs_node = False


_here: Final = _Here()
_logger: Final = logging.getLogger(__name__)
_lines: Final = Backlog("rdzv-log", partial(_logger.warning, "%d lines are lost: a handler of the log was too slow"))
_events: Final = Backlog("rdzv-events", partial(_logger.warning, "%d events are lost: a plugin was too slow"))


# Of a program that ends without the end of its nodes.
atexit.register(flush)


def _put_aside(record: logging.LogRecord) -> bool:
    """Whether the handlers take a record at once; a filter of loggers."""
    if _here.runs_node:
        _lines.add(partial(logging.getLogger(record.name).callHandlers, record))
    return not _here.runs_node
