"""The options of the etcd v3 backend."""

from typing import Final

from rdzv_core.options import Option
from rdzv_transport import request_timeout_option, same_cluster_option, tls_options

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "The key under which all runs of this etcd live: /<prefix>/<run id>/..."),
    *tls_options("servers'"),
    Option("user", "text", None, "The user that logs in, where etcd demands it."),
    Option("password", "text", None, "The password of user.", secret=True),
    request_timeout_option("endpoints"),
    same_cluster_option(),
)
"""Every option of this backend."""
