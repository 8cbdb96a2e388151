"""The options of the etcd v2 backend."""

from typing import Final

from rdzv_core.options import Option
from rdzv_transport import request_timeout_option, same_cluster_option, tls_options

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "The directory in which all runs of this etcd live: /<prefix>/<run id>/..."),
    Option("etcd_prefix", "text", None, "PyTorch's name for prefix."),
    *tls_options("servers'", cert="ssl_cert", key="ssl_cert_key"),
    Option("user", "text", None, "The user that logs in, where etcd demands it."),
    Option("password", "text", None, "The password of user.", secret=True),
    request_timeout_option("endpoints", name="read_timeout"),
    same_cluster_option(),
)
"""Every option of this backend; the names that PyTorch has, too, mean what they mean there."""
