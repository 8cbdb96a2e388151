"""The options of the ZooKeeper backend."""

from typing import Final

from rdzv.options import Option

__all__ = ["OPTIONS"]

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "The node under which all runs of this ZooKeeper live: /<prefix>/<run id>/..."),
    Option(
        "tls",
        "boolean",
        None,
        "Whether the endpoint is a secureClientPort; unset: if any of ca_cert, cert, key and server_name is given.",
    ),
    Option("ca_cert", "path", None, "PEM file of who must have signed the servers' certificates; unset: the system's."),
    Option("cert", "path", None, "PEM file of this client's certificate, and its key if that is not apart."),
    Option("key", "path", None, "PEM file of the key of this client's certificate."),
    Option("server_name", "text", None, "The name that the servers' certificates must hold, if not the endpoint's."),
    Option("user", "text", None, "Who we are: by ZooKeeper's digest scheme, or by SASL."),
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
        "Who may use our nodes: open, creator, or scheme:id:rwcda;...; unset: creator if we log in, else open.",
    ),
    Option(
        "request_timeout",
        "seconds",
        3.0,
        "How long one of several endpoints may take to answer before the next one is tried.",
    ),
)
"""Every option of this backend."""
