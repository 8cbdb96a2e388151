"""The options of the etcd v3 backend."""

from typing import Final

from rdzv.options import Option

__all__ = ["OPTIONS"]

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "The key under which all runs of this etcd live: /<prefix>/<run id>/..."),
    Option(
        "protocol",
        "text",
        None,
        "http or https; unset: https if any of ca_cert, cert, key and server_name is given, else http.",
        choices=("http", "https"),
    ),
    Option("ca_cert", "path", None, "PEM file of who must have signed the servers' certificates; unset: the system's."),
    Option("cert", "path", None, "PEM file of this client's certificate, and its key if that is not apart."),
    Option("key", "path", None, "PEM file of the key of this client's certificate."),
    Option("server_name", "text", None, "The name that the servers' certificates must hold, if not the endpoint's."),
    Option("user", "text", None, "Who logs in, where etcd demands it."),
    Option("password", "text", None, "The password of user.", secret=True),
    Option(
        "request_timeout",
        "seconds",
        3.0,
        "How long one of several endpoints may take to answer before the next one is tried.",
    ),
)
"""Every option of this backend."""
