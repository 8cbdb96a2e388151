"""PyTorch's own class passes level 1 as it is."""

from pathlib import Path
from typing import Any

import pytest

from rdzv_conformance import RegisterConformance


class TestTorch(RegisterConformance):
    """`C10dRendezvousBackend`, on a store that is a file."""

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Any:
        # Not at the top: torch takes seconds to import, and every process that the other tests fork would have it.
        store = pytest.importorskip("torch.distributed", reason="PyTorch is not installed").FileStore
        module = pytest.importorskip("torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")
        return lambda run_id: module.C10dRendezvousBackend(store(str(tmp_path / "store"), -1), run_id)
