"""What backends need whose service speaks HTTP: connections, failover, TLS, streams, and waits that share one query.

Built on the standard library's `http.client`, on sockets that can be ended at any moment. A plugin brings what
its service is asked (`Request`), what the answers mean, and how to follow a prefix (`Watches`).
"""

from .client import CancelToken, Client, ReplyLostError
from .connection import LONGEST, EndpointError, Reply, Request
from .forks import keep_in_children
from .process_local import ProcessLocal
from .stream import Stream
from .tls import tls_context
from .watches import Revision, Watches

__all__ = [
    "LONGEST",
    "CancelToken",
    "Client",
    "EndpointError",
    "ProcessLocal",
    "Reply",
    "ReplyLostError",
    "Request",
    "Revision",
    "Stream",
    "Watches",
    "keep_in_children",
    "tls_context",
]
