"""A database of its own for every test, and clients and processes that end with it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rdzv_conformance.fixtures import processes as processes

from rdzv_sqlite import SqliteBackend

from .clients import Connect


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database of the test is."""
    return tmp_path / "rdzv.db"


@pytest.fixture
def connect(path: Path) -> Iterator[Connect]:
    """Makes clients of one run, and closes them."""
    with ExitStack() as opened:

        def client() -> SqliteBackend:
            backend = SqliteBackend(str(path), "run")
            opened.callback(backend.close)
            return backend

        yield client
