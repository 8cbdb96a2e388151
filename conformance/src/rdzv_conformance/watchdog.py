"""Ends what hangs: a test of the suite that takes too long fails, with its name and what every thread was doing.

It needs no setting of the project, and leaves pytest's `faulthandler_timeout` and pytest-timeout alone, which have
timers of their own. A test is ended by a signal to the main thread, which interrupts whatever Python waits for. What
does not heed that (a client library in C, a thread that never ends) ends with the process.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

import pytest

from .suite.base import Conformance

DEFAULT: Final = 180.0
"""Seconds that a test may take, and as many to set it up and to take it down; a busy machine takes a tenth of that."""

WATCHDOG: Final = "rdzv-conformance-watchdog"
"""The name of the thread that watches a phase of a test."""

_SIGNAL: Final = signal.SIGVTALRM
"""Not in use elsewhere: pytest-timeout has SIGALRM, profilers have SIGPROF."""
_GRACE: Final = 10.0
"""Seconds within which an ended test must have ended, and the process after the last test."""
_AGAIN: Final = 2.0
"""After so many seconds an ended test is ended again: what it left in order to end may hang as well."""
_PATIENCE: Final = 3
"""After so many tests that hung, the rest is not tried."""


class Watchdog:
    """A plugin of pytest that watches the tests of one session.

    Args:
        seconds: What each phase of a test may take; 0: for ever.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._overdue: list[str] = []
        # What tests write is captured, and lost with the process: this output goes past that.
        self._stderr = os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Watch a test, and what it sets up."""
        with self._watching(item):
            return (yield)

    pytest_runtest_setup = pytest_runtest_call

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Watch what a test takes down; after a few that hung, try no more."""
        try:
            with self._watching(item):
                return (yield)
        finally:
            if len(set(self._overdue)) >= _PATIENCE:
                item.session.shouldfail = f"{_PATIENCE} tests did not end: the rest is not tried"

    def pytest_enter_pdb(self) -> None:
        """Leave the session alone from now on: a debugger is in use."""
        self._seconds = 0

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Let no thread of a test that hung keep the process from its end."""
        if self._overdue:
            threading.Thread(target=_end_with_the_program, args=(exitstatus or 1,), daemon=True).start()

    def pytest_unconfigure(self) -> None:
        """Let go."""
        self._stderr.close()

    @contextmanager
    def _watching(self, item: pytest.Item) -> Iterator[None]:
        of_suite = isinstance(item, pytest.Function) and item.cls and issubclass(item.cls, Conformance)
        # Tests run elsewhere than in the main thread if a plugin has pytest do so; then no signal reaches them.
        if not (self._seconds and of_suite and threading.current_thread() is threading.main_thread()):
            yield
            return
        over = threading.Event()
        watching = threading.Thread(
            target=self._watch, args=(item.nodeid, self._seconds, over), name=WATCHDOG, daemon=True
        )
        before = signal.signal(_SIGNAL, self._end_test)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
            signal.signal(_SIGNAL, before)

    def _watch(self, test: str, seconds: float, over: threading.Event) -> None:
        if over.wait(seconds) or not self._seconds:
            return
        self._overdue.append(test)
        self._tell(f"{test} did not end within {seconds:g} s. What every thread does:")
        faulthandler.dump_traceback(self._stderr)
        main = threading.main_thread().ident
        for _ in range(round(_GRACE / _AGAIN)):
            if main is not None:
                signal.pthread_kill(main, _SIGNAL)
            if over.wait(_AGAIN):
                return
        self._tell(f"{test} cannot be ended: this run ends here.")
        os._exit(pytest.ExitCode.TESTS_FAILED)

    def _tell(self, message: str) -> None:
        self._stderr.write(f"\nrdzv conformance: {message}\n")
        self._stderr.flush()

    def _end_test(self, number: int, frame: FrameType | None) -> NoReturn:
        pytest.fail(
            f"it did not end within {self._seconds:g} s: does a call ignore its timeout, or retry for ever? "
            "What every thread did is on stderr. A slower service gets more by --rdzv-timeout=SECONDS, or by "
            "rdzv_timeout in pytest's configuration."
        )


def _end_with_the_program(status: int) -> None:
    """When the program is done, Python waits for its threads, those that hang too: not for long."""
    while not _waits_for_threads():
        time.sleep(1)
    time.sleep(_GRACE)
    sys.stdout.flush()
    os._exit(status)


def _waits_for_threads() -> bool:
    """Whether the main thread has left the program, and joins the others."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame is None or (frame.f_code.co_filename, frame.f_code.co_name) == (threading.__file__, "_shutdown")
