"""What backends need whose service speaks HTTP: connections, failover, TLS, and waits that share one query.

Built on the standard library's `http.client`, on sockets that can be ended at any moment. A plugin brings what
its service is asked (`Request`), what the answers mean, and how to follow a prefix (`Watches`).
"""

from .client import Client, Hold, ReplyLostError, Request
from .connection import AttemptError, Reply
from .tls import tls_context
from .watches import Revision, Watches

__all__ = [
    "AttemptError",
    "Client",
    "Hold",
    "Reply",
    "ReplyLostError",
    "Request",
    "Revision",
    "Watches",
    "tls_context",
]
