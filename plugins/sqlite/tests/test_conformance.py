"""What every backend promises."""

from pathlib import Path

import pytest
from rdzv_conformance import BackendConformance, Connect, Parameters
from rdzv_core.parameters import RendezvousParameters

from rdzv_sqlite import SqliteBackend


class TestSqlite(BackendConformance):
    """The suite, on a database of its own for every test."""

    no_server = "There is no server: the database is a file, and test_crash.py has its processes die."

    @pytest.fixture
    def connect(self, path: Path) -> Connect:
        """Make a client of a run."""
        return lambda run_id: SqliteBackend(str(path), run_id)

    @pytest.fixture
    def parameters(self, path: Path) -> Parameters:
        """Configure it as a user does."""
        return lambda run_id: RendezvousParameters("sqlite", str(path), run_id, 1, 1)
