"""The options of the Consul backend."""

from typing import Final

from rdzv.options import Option

__all__ = ["OPTIONS"]

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "The path under which all runs of this Consul live: <prefix>/<run id>/..."),
    Option("token", "text", None, "The ACL token, where Consul demands one.", secret=True),
    Option("namespace", "text", None, "The namespace of the keys (Consul Enterprise); unset: the token's own."),
    Option("datacenter", "text", None, "The datacenter whose keys are used; unset: the agent's own."),
    Option(
        "protocol",
        "text",
        None,
        "http or https; unset: https if any of ca_cert, cert, key and server_name is given, else http.",
        choices=("http", "https"),
    ),
    Option("ca_cert", "path", None, "PEM file of who must have signed the agents' certificates; unset: the system's."),
    Option("cert", "path", None, "PEM file of this client's certificate, and its key if that is not apart."),
    Option("key", "path", None, "PEM file of the key of this client's certificate."),
    Option("server_name", "text", None, "The name that the agents' certificates must hold, if not the endpoint's."),
    Option(
        "request_timeout",
        "seconds",
        3.0,
        "How long one of several agents may take to answer before the next one is tried.",
    ),
)
"""Every option of this backend."""
