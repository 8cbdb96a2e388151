"""The suite: one file for each topic, and the class that has them all."""

from .addresses import AddressesConformance
from .admission import AdmissionConformance
from .capabilities import CapabilitiesConformance
from .cluster import ClusterConformance
from .concurrency import ConcurrencyConformance
from .creating import CreatingConformance
from .deleting import DeletingConformance
from .endings import EndingsConformance
from .entry import EntryConformance
from .fencing import FencingConformance
from .fitness import FitnessConformance
from .fork import ForkConformance
from .handler import HandlerConformance
from .keys import KeysConformance
from .leases import LeasesConformance
from .lifecycle import LifecycleConformance
from .order import OrderConformance
from .outages import OutagesConformance
from .register import RegisterConformance
from .security import SecurityConformance
from .store import StoreConformance
from .waiting import WaitingConformance

__all__ = ["BackendConformance"]


# pytest runs the tests of the last base first.
class BackendConformance(
    ClusterConformance,
    SecurityConformance,
    OutagesConformance,
    EndingsConformance,
    AddressesConformance,
    EntryConformance,
    FitnessConformance,
    AdmissionConformance,
    HandlerConformance,
    ForkConformance,
    LifecycleConformance,
    ConcurrencyConformance,
    StoreConformance,
    CreatingConformance,
    DeletingConformance,
    LeasesConformance,
    WaitingConformance,
    OrderConformance,
    KeysConformance,
    FencingConformance,
    RegisterConformance,
    CapabilitiesConformance,
):
    """Everything that a key-value backend must do.

    ::

        class TestMyBackend(BackendConformance):
            @pytest.fixture
            def connect(self):
                return lambda run_id: MyBackend("my://localhost:1", run_id)

    With the fixture ``server`` (see `Server`) it is also tried what an outage does.
    """

    _needs_keys = True
