"""What threads do one at a time."""

import dis
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from rdzv_transport import alone


def _soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_one_thread_at_a_time() -> None:
    lock, inside, most = threading.RLock(), itertools.count(), list[int]()
    busy = threading.Lock()

    def work() -> int:
        assert busy.acquire(blocking=False)
        time.sleep(0.001)
        most.append(next(inside))
        busy.release()
        return most[-1]

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(alone, lock, work, _soon()) for _ in range(40)]
        assert sorted(one.result(5) or 0 for one in done) == [*range(40)]


def test_who_does_not_get_the_lock_in_time_does_nothing() -> None:
    lock, begun, may_end = threading.RLock(), threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return may_end.wait(5)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(alone, lock, work, _soon())
        assert begun.wait(5)
        for seconds in (0.05, 0.0, -1.0):
            assert alone(lock, lambda: "mine", _soon(seconds)) is None
        may_end.set()
        assert other.result(5)
    # Where no thread is at it, that needs no time.
    assert alone(lock, lambda: "mine", _soon(-1.0)) == "mine"


def test_an_error_leaves_the_lock_to_the_next() -> None:
    lock = threading.RLock()
    with pytest.raises(ZeroDivisionError):
        alone(lock, lambda: 1 // 0, _soon())
    assert alone(lock, lambda: "mine", _soon(0.0)) == "mine"


def test_an_interrupt_anywhere_leaves_the_lock_to_the_next() -> None:
    for position in itertools.count():
        lock = threading.RLock()
        if not _is_interrupted(position, lock):
            break
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(alone, lock, lambda: "other", _soon(1.0)).result(5) == "other"
    assert position > 3


def _is_interrupted(position: int, lock: "threading.RLock") -> bool:
    """Interrupt it after so many calls, or at the begin of them, which is where Python handles signals."""
    left = position
    last: dict[FrameType, str] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != alone.__code__.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= last.get(frame, "CALL").startswith("CALL")
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if left < 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        alone(lock, lambda: "mine", time.monotonic() + 5.0)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
