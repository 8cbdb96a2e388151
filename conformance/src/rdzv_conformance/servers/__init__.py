"""Real servers for tests, and for jobs on one machine; no root, free ports, nothing left behind."""

from .cluster import ClusterMember, LocalCluster
from .consul import ConsulCluster, ConsulServer, ConsulTls
from .consul_client import ConsulClient
from .etcd import EtcdCluster, EtcdServer, EtcdTls, EtcdV2Server
from .etcd_client import EtcdClient
from .known import CLUSTERS, SERVERS
from .ports import free_ports
from .process import GuardedProcess
from .requirement import ServiceMissingError, require_service
from .service import LocalService, ServiceFailedError
from .tcpstore import TcpStoreServer
from .zookeeper import ZooKeeperCluster, ZooKeeperServer, ZooKeeperTls

__all__ = [
    "CLUSTERS",
    "SERVERS",
    "ClusterMember",
    "ConsulClient",
    "ConsulCluster",
    "ConsulServer",
    "ConsulTls",
    "EtcdClient",
    "EtcdCluster",
    "EtcdServer",
    "EtcdTls",
    "EtcdV2Server",
    "GuardedProcess",
    "LocalCluster",
    "LocalService",
    "ServiceFailedError",
    "ServiceMissingError",
    "TcpStoreServer",
    "ZooKeeperCluster",
    "ZooKeeperServer",
    "ZooKeeperTls",
    "free_ports",
    "require_service",
]
