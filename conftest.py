"""What the tests of every package keep to: what one leaves behind, such as a thread, would meet the next ones."""

import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import pytest

pytest_plugins = ["tools.smoke", "tools.unstable"]

JOBS = re.compile(
    "(AWS_BATCH|AZ|AZUREML|FLUX|JOBSET|JSM|LOCAL|LSB|LWS|OMPI|PALS|PBS|PET|PMI|PMIX|PRTE|SKYPILOT|SLURM|SLURMD|SM"
    "|STATEFULSET|TORCHELASTIC|TRAINING_JOB|VC|VK|GROUP|MPI)_.+|CLOUD_ML_JOB_ID|CLUSTER_SPEC|JOB_COMPLETION_INDEX"
    "|MASTER_(ADDR|PORT)|POD_INDEX|RANK|WORLD_SIZE"
)
"""The variables by which schedulers and launchers tell of a job. The tests, and what they start, are in none."""

for _name in filter(JOBS.fullmatch, list(os.environ)):
    del os.environ[_name]

WATCHDOG = "rdzv-conformance-watchdog"
"""The thread of the suite's own that watches a test as it is taken down."""

SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

PATIENCE = 20.0
"""Seconds within which the threads of a test must end once everything that it made is closed, on a busy machine."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test after which a thread runs that did not run before it; threads of its module's servers may."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + PATIENCE
    while left := {thread for thread in set(threading.enumerate()) - before if thread.name != WATCHDOG}:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind, {PATIENCE:g} s after the end of the test:\n{''.join(map(_shown, left))}")
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_variable_is_left() -> Iterator[None]:
    """Fail a test after which the environment is another one."""
    before = dict(os.environ)
    yield
    changed = {name for name, _ in dict(os.environ).items() ^ before.items()} - {"PYTEST_CURRENT_TEST"}
    if changed:
        pytest.fail(f"changed in the environment: {', '.join(sorted(changed))}")


@pytest.fixture(autouse=True)
def no_handler_is_left() -> Iterator[None]:
    """Fail a test after which a signal does something else: what is ignored is so in all that is started later, too."""
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not None}
    yield
    changed = [number for number, handler in before.items() if signal.getsignal(number) != handler]
    for number in changed:
        signal.signal(number, before[number])
    if changed:
        pytest.fail(f"signals do something else: {', '.join(str(number) for number in changed)}")


def _shown(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name}\n{''.join(traceback.format_stack(frame)) if frame else 'has just ended'}\n"
