"""Packages with entry points, installed for one test: backends and hooks."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rdzv import hooks

Install = Callable[[str, str, Mapping[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """See `installing` in the tests of rdzv-core; the hooks of the test are forgotten after it, too."""
    # Here, for the tests of a package that stands alone do without.
    from core.tests.conftest import installing

    monkeypatch.setattr(hooks, "_manager", hooks._new_manager())
    yield from installing(tmp_path, monkeypatch)
