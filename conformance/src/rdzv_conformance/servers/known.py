"""Which service each of rdzv's own backends needs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from .cluster import ClusterMember, LocalCluster
from .consul import ConsulCluster, ConsulServer
from .etcd import EtcdCluster, EtcdServer, EtcdV2Server
from .zookeeper import ZooKeeperCluster, ZooKeeperServer

SERVERS: Final[Mapping[str, type[ClusterMember]]] = {
    "consul": ConsulServer,
    "etcd-v2": EtcdV2Server,
    "etcd-v3": EtcdServer,
    "zookeeper": ZooKeeperServer,
}
"""The server for each backend that needs one, by the backend's name; ``SERVERS[name]()`` makes one."""

CLUSTERS: Final[Mapping[str, Callable[[], LocalCluster[Any]]]] = {
    "consul": ConsulCluster,
    "etcd-v2": partial(EtcdCluster, enable_v2=True),
    "etcd-v3": EtcdCluster,
    "zookeeper": ZooKeeperCluster,
}
"""A cluster of three for each backend whose service can be one, by the backend's name."""
