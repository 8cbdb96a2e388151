"""Every call that a client has, for tests that try all of them; and how a call ends."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rdzv.backend import ABSENT, Capability, KeyValueBackend, Snapshot

from .base import CALL, KEY, ROOT

__all__ = ["calls_of", "end_of", "held"]

_DESCRIPTORS: Final = Path("/proc/self/fd")


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
    """How many threads and files this process has (only threads where the system does not tell)."""
    files = len(os.listdir(_DESCRIPTORS)) if _DESCRIPTORS.exists() else 0
    return threading.active_count(), files
