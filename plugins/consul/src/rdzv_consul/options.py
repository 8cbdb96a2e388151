"""The options of the Consul backend."""

from typing import Final

from rdzv_core.options import Option
from rdzv_transport import request_timeout_option, tls_options

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "The path under which all runs of this Consul live: <prefix>/<run id>/..."),
    Option("token", "text", None, "The ACL token, where Consul demands one.", secret=True),
    Option("namespace", "text", None, "The namespace of the keys (Consul Enterprise); unset: the token's own."),
    Option("datacenter", "text", None, "The datacenter whose keys are used; unset: the first agent's own."),
    *tls_options("agents'"),
    request_timeout_option("agents"),
)
"""Every option of this backend."""
