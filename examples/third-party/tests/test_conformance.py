"""A directory does what every backend must do.

A register does what PyTorch demands of one.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from rdzv_conformance import (
    BackendConformance,
    Connect,
    Parameters,
    RegisterConformance,
)
from rdzv_core import RendezvousBackend, RendezvousParameters, escape

from rdzv_directory import DirectoryBackend, FileRegister


class TestDirectory(BackendConformance):
    no_server = "A directory has no server that could be stopped."

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda run_id: DirectoryBackend(str(tmp_path), run_id)

    @pytest.fixture
    def parameters(self, tmp_path: Path) -> Parameters:
        place = "directory", str(tmp_path)
        return lambda run_id: RendezvousParameters(*place, run_id, 1, 1)


class TestFileRegister(RegisterConformance):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[str], RendezvousBackend]:
        return lambda run_id: FileRegister(tmp_path / escape(run_id))
