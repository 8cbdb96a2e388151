"""Real servers for tests, and for jobs on one machine; no root, free ports, nothing left behind."""

from .etcd import EtcdCluster, EtcdServer, EtcdTls
from .etcd_client import EtcdClient
from .ports import free_ports
from .process import GuardedProcess
from .requirement import ServiceMissingError, require_service
from .service import LocalService, ServiceFailedError

__all__ = [
    "EtcdClient",
    "EtcdCluster",
    "EtcdServer",
    "EtcdTls",
    "GuardedProcess",
    "LocalService",
    "ServiceFailedError",
    "ServiceMissingError",
    "free_ports",
    "require_service",
]
