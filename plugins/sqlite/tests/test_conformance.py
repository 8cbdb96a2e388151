"""What every backend promises."""

from pathlib import Path

import pytest
from rdzv_conformance import BackendConformance, Connect

from rdzv_sqlite import SqliteBackend


class TestSqlite(BackendConformance):
    """The suite, on a database of its own for every test."""

    no_server = "There is no server: the database is a file, and test_crash.py has its processes die."

    @pytest.fixture
    def connect(self, path: Path) -> Connect:
        """Make a client of a run."""
        return lambda run_id: SqliteBackend(str(path), run_id)
