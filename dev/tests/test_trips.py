"""No backend needs more round trips to a world than it did: counted, so that a slow machine changes nothing."""

from importlib import import_module
from typing import Any, Final

import pytest
from rdzv_conformance.servers import SERVERS, require_service

from .test_bench import ROOT

_TRIES: Final = 5


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The part of the comparison that counts."""
    monkeypatch.syspath_prepend(ROOT / "dev")
    return import_module("bench.counted")


# The nodes of c10d import torch, and have most to wait for.
@pytest.mark.parametrize("backend", [pytest.param("c10d", marks=pytest.mark.soak), *SERVERS])
def test_no_more_round_trips_than_recorded(counted: Any, backend: str) -> None:
    if backend in SERVERS:
        require_service(SERVERS[backend])
    else:
        pytest.importorskip("torch")
    record = counted.recorded()[backend]
    least: dict[str, int] = {}
    for _ in range(_TRIES):
        # What happens once, such as two that want to lead, only adds trips.
        least = {name: min(trips, least.get(name, trips)) for name, trips in counted.count(backend).items()}
        if all(trips <= record[name] for name, trips in least.items()):
            return
    pytest.fail(f"It was {record} and is {least}; if that is meant: python3 dev.py trips {backend}")
