"""Real agents for tests of nodes: on a file, or on a service of each kind (a file, leases, heartbeat leases)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .agents import Agents, agents_on


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Agents]:
    """On a file."""
    with agents_on("sqlite", tmp_path) as agents:
        yield agents


@pytest.fixture(params=["sqlite", "etcd-v3", "consul"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    """On a service of each kind."""
    with agents_on(request.param, tmp_path) as agents:
        yield agents
