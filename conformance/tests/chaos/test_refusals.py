"""A service that refuses some kinds of calls refuses them all, and no other."""

from collections.abc import Callable
from contextlib import closing

import pytest
from rdzv_core.backend import ANY, PutOutcome
from rdzv_core.errors import RendezvousDeniedError

from rdzv_conformance.chaos.refusals import Permissions, Refusal, guarded
from rdzv_conformance.fixtures import processes as processes
from rdzv_conformance.processes import Processes

from ..reference import MemoryBackend, MemoryServer

CALL = 10.0


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except RendezvousDeniedError:
        return True
    return False


@pytest.mark.parametrize("refusal", Refusal)
def test_a_service_refuses_such_calls_and_no_other(processes: Processes, refusal: Refusal) -> None:
    permissions = Permissions()
    with closing(guarded(MemoryBackend(MemoryServer(processes).get_endpoint(), "run"), permissions)) as backend:
        lease = backend.open_lease(CALL, timeout=CALL)
        since = backend.read_all("key", timeout=CALL)
        there = backend.put("removed", b"", expect=ANY, timeout=CALL).entry
        assert there is not None
        permissions.refused = refusal
        calls = {
            "read": lambda: backend.read("key", timeout=CALL),
            "read_all": lambda: backend.read_all("key", timeout=CALL),
            "put": lambda: backend.put("key", b"", expect=ANY, lease=lease, timeout=CALL),
            "wait": lambda: backend.wait("key", since, timeout=0.1),
            "open_lease": lambda: backend.open_lease(CALL, timeout=CALL),
            "keep_alive": lambda: lease.keep_alive(CALL),
            "revoke": lambda: lease.revoke(CALL),
            "delete": lambda: backend.delete("key", timeout=CALL),
            "create_all": lambda: backend.create_all({"pages/0": b"", "pages/1": b""}, timeout=CALL),
            "delete_version": lambda: backend.delete_version("removed", there.token, timeout=CALL),
        }
        assert {name for name, call in calls.items() if is_refused(call)} == refusal.value
        permissions.refused = Refusal.NOTHING
        assert backend.put("key", b"", expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED
