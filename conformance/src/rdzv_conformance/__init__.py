"""The conformance suite for rdzv backends, and real servers to test with (`rdzv_conformance.servers`)."""

from .suite import (
    BackendConformance,
    Clients,
    Cluster,
    Conformance,
    Connect,
    ConnectTo,
    Parameters,
    RegisterConformance,
    Secured,
    Server,
    Stranger,
    lacks,
    requires,
)

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
