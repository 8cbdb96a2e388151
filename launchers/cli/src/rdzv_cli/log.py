"""What the command says on the standard error: every line begins with who says it, and `rdzv run`'s with when; or is an
object of JSON.

A reader that stalls holds up no node: a thread of its own writes.
"""

import contextlib
import io
import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Final

from rdzv.backlog import Backlog
from rdzv_core.text import printable

from .programs import copier

_LONGEST: Final = 8000
"""Characters of a line; of a longer one its two ends are shown."""

_FLUSH: Final = 2.0
"""Seconds that the reader gets, at the end, to take what was said."""

_ERASE: Final = "\r\x1b[K"
"""Takes the last line of a terminal away."""

_node = ""
"""The id of the node that speaks; empty while there is none."""

_place: dict[str, object] | None = None
"""Run, round and rank, for every line, which is an object of JSON; None: lines are text."""


def _nothing() -> None:
    """Say no more than the line itself."""


_before: Callable[[], None] = _nothing
"""Says what is to stand before the next line."""

_turn: Final = threading.RLock()
"""Who has it writes: no other comes between the line that is shown and what takes its place."""

_is_shown = False
"""Whether there is a line that the next one takes the place of."""


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _before()
        _put(_lines(self.format(record), record.created, record.levelname))


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        """The message on one line; a traceback has others."""
        return _one_line(super().formatMessage(record))


def begin(verbosity: int) -> None:
    """Log to the standard error: warnings, with 1 also news, from 2 on everything."""
    handler = _Handler()
    handler.setFormatter(_Formatter())
    logging.basicConfig(level=_level(verbosity), handlers=[handler])
    # Python shows these to the authors of a program, and hides them otherwise.
    logging.captureWarnings(True)
    warnings.filterwarnings("default", category=DeprecationWarning, module="rdzv")


def be_verbose(verbosity: int) -> None:
    """From now on log so much, as `begin`."""
    logging.getLogger().setLevel(_level(verbosity))


def _level(verbosity: int) -> int:
    return (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]


def end() -> None:
    """Speak for no handler any more, and see to it that what was said is written, if anyone reads it."""
    global _place
    speak_as("")
    _place = None
    logging.captureWarnings(False)
    clear()
    flush()


def flush(timeout: float = _FLUSH) -> None:
    """Wait until what was said is written, so many seconds at most: not for a reader that stalls."""
    _said.flush(timeout)


def speak_as(node: str) -> None:
    """From now on every line has the time and this node's id; empty: neither."""
    global _node
    _node = node


def speak_json(run: str) -> None:
    """From now on every line is an object of JSON, which names this run."""
    global _place
    _place = {"run": run, "round": None, "rank": None}


def speak_in(number: int, rank: int) -> None:
    """From now on every object names this round, and the rank that the node's first process has there."""
    if _place is not None:
        _place.update(round=number, rank=rank)


def place() -> dict[str, object] | None:
    """Run, round, rank and node, as objects name them; None: lines are text."""
    return None if _place is None else {**_place, "node": _node or None}


def before_each_line(say_before: Callable[[], None] = _nothing) -> None:
    """From now on call this before every line: it may say what came earlier."""
    global _before
    _before = say_before


def say(text: str) -> None:
    """Say something, whatever the level of the log."""
    _before()
    _put(_lines(_one_line(text), time.time()))


def show(text: str) -> None:
    """Show a line on a terminal until the next one, of which sort it may be, takes its place."""
    global _is_shown
    with _turn:
        _is_shown = True
        write(f"{_ERASE}{text}")


def clear() -> None:
    """Take away the line that is shown, if there is one."""
    _put("", "")


def _put(text: str, end: str = "\n") -> None:
    """Have something written in the place of the line that is shown."""
    global _is_shown
    with _turn:
        erased, _is_shown = _ERASE if _is_shown else "", False
        if erased or end:
            write(f"{erased}{text}{end}")


def write(text: str) -> None:
    """Have something written to the standard error as it is.

    A node outlives its log: a full disk, a reader that is gone and a stream that is closed are passed over, as they
    are by `logging`. What a reader that stalls does not take is dropped, and counted.
    """
    _said.add(partial(_write, text))


def moment(when: float | None = None) -> str:
    """A point in time (seconds since the epoch; None: now) on this machine's clock, with its time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(when))


def _one_line(text: str) -> str:
    """A message on the line that it has: other nodes choose some of it, and none speaks for this one."""
    return printable(text.rstrip(), _LONGEST)


def _lines(text: str, when: float, level: str = "INFO") -> str:
    if (named := place()) is not None:
        return json.dumps({"time": moment(when), **named, "level": level, "message": text})
    prefix = f"{moment(when)} rdzv[{_node}]: " if _node else "rdzv: "
    # A traceback has many lines, and a collector of logs takes each for itself.
    return "\n".join(f"{prefix}{printable(line, _LONGEST)}" for line in text.splitlines() or [""])


def _write(text: str) -> None:
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        try:
            descriptor = stream.fileno()
        except io.UnsupportedOperation:
            stream.write(text)
            return
        # Past the stream, whose lock the interpreter takes at its end: a write that is stuck would abort it.
        copier.write(descriptor, text.encode(stream.encoding, "backslashreplace"))


def _tell_dropped(count: int) -> None:
    lost = "1 message is" if count == 1 else f"{count} messages are"
    _write(f"{_lines(f'{lost} not here: the reader of this log was too slow', time.time())}\n")


_said: Final = Backlog("rdzv-log", _tell_dropped)
