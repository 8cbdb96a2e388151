"""The options of the ZooKeeper backend."""

from typing import Final

from rdzv_core.options import Option
from rdzv_transport import request_timeout_option, tls_options

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "The node under which all runs of this ZooKeeper live: /<prefix>/<run id>/..."),
    Option(
        "tls",
        "boolean",
        None,
        "Whether the endpoint is a secureClientPort; unset: if any of ca_cert, cert, key and server_name is given.",
    ),
    # Without the first, which is another switch.
    *tls_options("servers'")[1:],
    Option("user", "text", None, "The user that logs in: by ZooKeeper's digest scheme, or by SASL."),
    Option("password", "text", None, "The password of user.", secret=True),
    Option(
        "sasl",
        "text",
        None,
        "The SASL mechanism to log in by: DIGEST-MD5 or GSSAPI (Kerberos); unset: no SASL.",
        choices=("DIGEST-MD5", "GSSAPI"),
    ),
    Option("sasl_service", "text", "zookeeper", "The name of the servers' service, for SASL."),
    Option(
        "acl",
        "text",
        None,
        "The ACL of what rdzv writes: open, creator, or scheme:id:rwcda;...; unset: creator after a login, else open.",
    ),
    request_timeout_option("endpoints"),
)
"""Every option of this backend."""
