"""PyTorch's own class passes level 1 of the suite as it is."""

from pathlib import Path
from typing import Any

import pytest
from rdzv_conformance import RegisterConformance

from rdzv_c10d.store import stores


class TestTorch(RegisterConformance):
    """`C10dRendezvousBackend` of PyTorch, on a store that is a file."""

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Any:
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

        return lambda run_id: C10dRendezvousBackend(stores().FileStore(str(tmp_path / "store"), -1), run_id)
