"""A foreign client, in a process of its own: it overwrites what the nodes have written, and puts it back.

Beside that it leaves keys of its own where nodes have theirs: nothing that the nodes may believe.
"""

import itertools
import math
import signal
import time
from typing import Final

from rdzv import KeyValueBackend, RendezvousConnectionError, RendezvousParameters
from rdzv.registry import create_backend
from rdzv_core import PutOutcome
from rdzv_core.backend import ANY, STATE_KEY

from ..meanwhile import with_retries
from ..processes import Link

KEYS: Final = (STATE_KEY, "control/status")
"""What is written over. A key on a lease would lose it."""

_DIGITS: Final = b"9" * 4301
"""One more than Python reads as an integer."""
_FOREIGN: Final = (
    b"\0foreign bytes",
    _DIGITS,
    b'{"rdzv":%b}\n' % _DIGITS,
    b"[" * 100_000,
    b'{"rdzv":1e999}\n',
    b"\xff",
)
_STRAYS: Final = (f"nodes/{'9' * 400}", f"rounds/{'9' * 400}/store/k", "control/quarantines/stray")
"""Keys that stay. No service refuses their length."""
_DAY: Final = 86400.0
_CALL: Final = 1.0


def corrupt_keys(link: Link, parameters: RendezvousParameters) -> None:
    """The life of the process: it receives a key and for how many seconds, and answers when all is as it was."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    backend: KeyValueBackend | None = None
    foreign, strays = itertools.cycle(_FOREIGN), itertools.cycle(_STRAYS)
    while True:
        key, seconds = link.receive(_DAY)
        if backend is None:
            made, _ = create_backend(parameters)
            assert isinstance(made, KeyValueBackend)
            backend = made
        value = next(foreign)
        _leave(backend, next(strays), value)
        _corrupt(backend, key, value, seconds)
        link.send()


def _leave(backend: KeyValueBackend, key: str, value: bytes) -> None:
    with_retries(lambda: backend.put(key, value, expect=ANY, timeout=_CALL), math.inf)


def _corrupt(backend: KeyValueBackend, key: str, value: bytes, seconds: float) -> None:
    there = with_retries(lambda: backend.read(key, timeout=_CALL), math.inf)
    if there is None or not _replace(backend, key, there.value, value):
        return
    time.sleep(seconds)
    # Unless a node has written there meanwhile.
    _replace(backend, key, value, there.value)


def _replace(backend: KeyValueBackend, key: str, before: bytes, after: bytes) -> bool:
    """Whether `after` is there now, where `before` was."""

    def replace() -> bool:
        there = backend.read(key, timeout=_CALL)
        if there is None or there.value != before:
            return there is not None and there.value == after
        if backend.put(key, after, expect=there.token, timeout=_CALL).outcome is not PutOutcome.APPLIED:
            raise RendezvousConnectionError("Another was faster, or the reply was lost.")
        return True

    return with_retries(replace, math.inf)
