"""Every call that a client has, for tests that try all of them; and how a call ends."""

import threading
import time
from collections.abc import Callable
from typing import Any

from rdzv_core.backend import ABSENT, Capability, KeyValueBackend, Snapshot

from ..meanwhile import open_files
from .base import CALL, KEY, ROOT


def calls_of(client: KeyValueBackend, since: Snapshot, timeout: float) -> dict[str, Callable[[], Any]]:
    """Every call that a client has, with a timeout. The leases among them are opened now."""
    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: client.read(KEY, timeout=timeout),
        "read_all": lambda: client.read_all(ROOT, timeout=timeout),
        "put": lambda: client.put("suite/put", b"x", expect=ABSENT, timeout=timeout),
        "delete": lambda: client.delete("suite/other", timeout=timeout),
        "wait": lambda: client.wait(ROOT, since, timeout=timeout),
    }
    if Capability.LEASE in client.capabilities:
        kept, revoked = client.open_lease(30, timeout=CALL), client.open_lease(30, timeout=CALL)
        calls |= {
            "open_lease": lambda: client.open_lease(30, timeout=timeout),
            "keep_alive": lambda: kept.keep_alive(timeout),
            "revoke": lambda: revoked.revoke(timeout),
        }
    return calls


def end_of(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returned or raised, and after how many seconds."""
    began = time.monotonic()
    try:
        end = call()
    except Exception as error:
        end = error
    return end, time.monotonic() - began


def held() -> tuple[int, int]:
    """How many threads and files this process has."""
    return threading.active_count(), open_files()


def holds_more_than(before: tuple[int, int]) -> bool:
    """Whether this process has more threads or files than `held` said."""
    return any(now > then for now, then in zip(held(), before, strict=True))
