"""The entry point's topic: plugins with a store of their own and without, and what is wrong with one is named."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rdzv import RendezvousParameters, registered_backends
from rdzv.store import KeyValueStore
from rdzv_core import BackendPlugin

from rdzv_conformance.suite.entry import EntryConformance

from ..reference import MemoryBackend, OnMemory

pytest_plugins = ["pytester"]

Create = Callable[[RendezvousParameters], tuple[MemoryBackend, Any]]


def plugin(create: Create) -> BackendPlugin:
    """A plugin for ``memory``."""
    return BackendPlugin("For tests.", (), create, MemoryBackend)


def without_store(params: RendezvousParameters) -> tuple[MemoryBackend, Any]:
    return MemoryBackend(params.endpoint, params.run_id), None


def with_store(params: RendezvousParameters) -> tuple[MemoryBackend, Any]:
    backend = MemoryBackend(params.endpoint, params.run_id)
    return backend, KeyValueStore(backend)


def of_another_run(params: RendezvousParameters) -> tuple[MemoryBackend, Any]:
    return MemoryBackend(params.endpoint, "always the same"), None


def with_foreign_store(params: RendezvousParameters) -> tuple[MemoryBackend, Any]:
    store = KeyValueStore(MemoryBackend(params.endpoint, f"another of process {os.getpid()}"))
    return MemoryBackend(params.endpoint, params.run_id), store


class TestPlugins(OnMemory, EntryConformance):
    @pytest.fixture(autouse=True, params=[without_store, with_store])
    def installed(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(registered_backends, "memory", plugin(request.param))


FILE = """
import pytest
from rdzv_conformance import BackendConformance, RegisterConformance
from {package}.reference import OnMemory

class TestIt(OnMemory, BackendConformance):
    pass
"""


def _run(pytester: pytest.Pytester) -> pytest.RunResult:
    tests = Path(__file__).parent.parent
    pytester.syspathinsert(tests.parent)
    pytester.makepyfile(test_it=FILE.format(package=tests.name))
    return pytester.runpytest("-k", "this_backend or its_node")


@pytest.mark.parametrize(
    ("create", "words"),
    [
        (of_another_run, "the plugin's backend does not see the keys of `connect`'s"),
        (with_foreign_store, "a program sees another store than its node"),
    ],
)
def test_a_plugin_that_is_wrong_is_caught(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, create: Create, words: str
) -> None:
    monkeypatch.setitem(registered_backends, "memory", plugin(create))
    result = _run(pytester)
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines([f"*{words}*"])


def test_what_is_not_installed_is_not_tried_and_it_is_said(pytester: pytest.Pytester) -> None:
    result = _run(pytester)
    result.stdout.fnmatch_lines(["entry *2 not tried", "not tried: no plugin 'memory' is installed, *"])
