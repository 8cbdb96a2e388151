"""The conformance suite for rdzv backends, and real servers to test with (`rdzv_conformance.servers`)."""

from .suite import BackendConformance
from .suite.base import Clients, Conformance, Connect, lacks, requires
from .suite.cluster import Cluster
from .suite.entry import Parameters
from .suite.register import RegisterConformance
from .suite.security import Secured, Stranger
from .suite.server import ConnectTo, Server

__all__ = [
    "BackendConformance",
    "Clients",
    "Cluster",
    "Conformance",
    "Connect",
    "ConnectTo",
    "Parameters",
    "RegisterConformance",
    "Secured",
    "Server",
    "Stranger",
    "lacks",
    "requires",
]
