"""Interrupts at chosen lines: the handler of a signal may raise around any call that an adapter makes."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType
from typing import Any

from rdzv_core.backend import ANY, KeyValueBackend

_MOST = 10_000


def check_interrupted_waits(
    waiter: KeyValueBackend, writer: KeyValueBackend, modules: tuple[ModuleType, ...], timeout: float
) -> int:
    """Interrupt a wait at each line in turn, with news under way; the next wait must hear of the next change.

    Args:
        waiter: Waits, and is interrupted.
        writer: Another client of the same run.
        modules: See `interrupted_at`.
        timeout: Of each call, in seconds.

    Returns:
        At how many lines a wait was interrupted.

    Raises:
        AssertionError: A wait missed a change after an interrupt.
    """
    position, seen = 0, waiter.read_all("interrupted", timeout=timeout)
    while interrupted_at(position, modules, partial(waiter.wait, "interrupted", seen, timeout=timeout)):
        assert position < _MOST
        position += 1
        value = b"%d" % position
        writer.put("interrupted", value, expect=ANY, timeout=timeout)
        while "interrupted" not in seen.entries or seen.entries["interrupted"].value != value:
            known, seen = seen, waiter.wait("interrupted", seen, timeout=timeout)
            assert seen is not known, f"after interrupt {position}, a wait of {timeout} s did not hear of a change"
        # The next wait is interrupted before, while, or after it hears of this.
        writer.put("interrupted", b"more", expect=ANY, timeout=timeout)
    return position


def interrupted_at(position: int, modules: tuple[ModuleType, ...], call: Callable[[], object]) -> bool:
    """Interrupt a call at so many of the lines of some modules that call something, which is where Python runs the
    handlers of signals.

    Args:
        position: 0 for the first such line that is reached.
        modules: Whose lines count.
        call: What is interrupted, by a KeyboardInterrupt.

    Returns:
        Whether the interrupt came out of it; False if the call ended before, or has swallowed it.
    """
    sources = {module.__file__: inspect.getsource(module).splitlines() for module in modules}
    left = position
    reached: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal left
        lines = sources.get(frame.f_code.co_filename)
        if lines is None:
            return None
        number = frame.f_lineno - 1
        # No signal is handled between the end of a block and the first call of its `finally`, nor where a comprehension
        # ends, at whose line Python 3.12 and newer arrive again, then outside of a `try` around it.
        again = sys.version_info >= (3, 12) and reached.get(frame) == number
        reached[frame] = number
        left -= event == "line" and "(" in lines[number] and lines[number - 1].strip() != "finally:" and not again
        if left < 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
