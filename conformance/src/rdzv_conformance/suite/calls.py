"""Every call that a client has, for tests that try all of them; and how a call ends."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeVar

import pytest
from rdzv_core.backend import ABSENT, Capability, KeyValueBackend, PutOutcome, PutResult, Snapshot
from rdzv_core.threads import in_thread

from ..meanwhile import open_files
from .base import CALL, KEY, ROOT, Verdict, leave_out

_INHERITED: Final = {
    "delete_version": "keys that are deleted from a store leave some bytes",
    "create_all": "the pages of a large world are put one by one",
}
"""What it means that a backend inherits an optional method, which is no capability."""


def has_own(backend: KeyValueBackend, method: str) -> bool:
    """Whether a backend has an optional method, and does not inherit the one that refuses."""
    return getattr(type(backend), method) is not getattr(KeyValueBackend, method)


def need_own(test: pytest.Item, backend: KeyValueBackend, method: str) -> None:
    """End a test that is about an optional method, where the backend inherits it."""
    if not has_own(backend, method):
        why = f"'{backend.name}' inherits `{method}`: {_INHERITED[method]}"
        leave_out(test, Verdict.UNSUPPORTED, why)


_T = TypeVar("_T")

_PATIENCE: Final = 2 * CALL
"""Seconds after which a call in another thread will never end: all calls of the suite are given less."""


def calls_of(
    client: KeyValueBackend, since: Snapshot, timeout: float, *, is_served: bool = True
) -> dict[str, Callable[[], Any]]:
    """Every call that a client has, with a timeout. The leases among them are opened now, and a version is made to be
    deleted: not for a client that no service serves, which is left without `delete_version`."""
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
    if has_own(client, "delete_version") and is_served:
        # Of a key that is gone, and no part of what is waited for.
        there = client.put("removed", b"x", expect=ABSENT, timeout=CALL).entry
        client.delete("removed", timeout=CALL)
        assert there is not None
        calls["delete_version"] = lambda: client.delete_version("removed", there.token, timeout=timeout)
    if has_own(client, "create_all"):
        calls["create_all"] = lambda: client.create_all(dict.fromkeys(("suite/0", "suite/1"), b"x"), timeout=timeout)
    return calls


def is_unknown(end: Any) -> bool:
    """Whether a call has ended by saying that its reply was lost."""
    return end in (PutResult(PutOutcome.UNKNOWN), PutOutcome.UNKNOWN)


def end_of(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returned or raised, and after how many seconds."""
    began = time.monotonic()
    try:
        end = call()
    except Exception as error:
        end = error
    return end, time.monotonic() - began


def begun(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Future[tuple[Any, float]]]:
    """Calls, each in a thread of its own, which keeps no test from its end; and how each ends, as `end_of`."""
    return {name: in_thread(partial(end_of, call), name) for name, call in calls.items()}


def ends_of(calls: Mapping[str, Callable[[], Any]]) -> dict[str, tuple[Any, float]]:
    """How calls end that are made at once; those that do not end are named."""
    ends = begun(calls)
    if missing := wait(ends.values(), _PATIENCE).not_done:
        names = ", ".join(name for name, end in ends.items() if end in missing)
        pytest.fail(f"these calls have not ended within {_PATIENCE:g} s, whatever their timeout: {names}")
    return {name: end.result() for name, end in ends.items()}


def result_of(call: Future[_T], name: str, seconds: float = _PATIENCE) -> _T:
    """What a call in another thread has returned or raised; one that does not end is named.

    Such calls run `in_thread`: a pool of threads would wait for them for ever, and not let this be said.
    """
    if wait([call], seconds).not_done:
        pytest.fail(f"this call has not ended within {seconds:g} s, whatever its timeout: {name}")
    return call.result()


def at_once(name: str, work: Callable[[_T], object], items: Iterable[_T], threads: int) -> None:
    """Do some work for each of many items, on several threads; see `result_of`.

    Args:
        name: The calls that the work makes.
        work: What is done.
        items: For each of these.
        threads: How many.
    """
    left, lock = iter(items), threading.Lock()

    def take() -> list[_T]:
        with lock:
            return list(itertools.islice(left, 1))

    def work_off() -> None:
        while taken := take():
            work(*taken)

    for one in [in_thread(work_off, name) for _ in range(threads)]:
        result_of(one, name, 3 * _PATIENCE)


def held() -> tuple[int, int]:
    """How many threads and files this process has."""
    return threading.active_count(), open_files()


def holds_more_than(before: tuple[int, int]) -> bool:
    """Whether this process has more threads or files than `held` said."""
    return any(now > then for now, then in zip(held(), before, strict=True))
