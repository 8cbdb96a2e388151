"""The tool that a module tests; real agents for tests of nodes: on a file, or on a service of each kind."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from .agents import Agents, agents_on

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of dev/tools that the test module names: its `TOOL`."""
    monkeypatch.syspath_prepend(TOOLS)
    return import_module(request.module.TOOL)


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
