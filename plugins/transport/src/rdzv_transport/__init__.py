"""What backends share whose service is asked over a network: connections, failover, TLS, forks, and waiting.

A `NetworkBackend` has a link to its service in each process. For a service that speaks HTTP, `Client` makes calls and
streams over the standard library's sockets; the plugin brings what is asked (`Request`), what the answers mean,
and how to follow a prefix (`Watches`): by a stream of changes (`ChangeWatch`), or by polls (`PollWatch`). For one with
a protocol of its own there are the layers below: `FailoverClient` and the sockets that it makes.
"""

from .alone import alone
from .backend import NetworkBackend
from .changes import Change, Changes, ChangeWatch, GapError
from .client import Client
from .cluster import OneCluster
from .connection import Reply, Request
from .failover import FailoverClient, Member, ReplyLostError
from .forks import keep_in_children
from .numbers import number_of
from .options import request_timeout_option, same_cluster_option, tls_options
from .poll import Poll
from .polls import PollWatch, Revision
from .prefixes import Prefixes, contains
from .present import Present
from .process_local import ProcessLocal
from .sockets import LONGEST, EndpointError, TimedSocket
from .stream import Stream, StreamEndedError
from .tls import pop_tls_context, tls_context
from .watches import Watches

__all__ = [
    "LONGEST",
    "Change",
    "ChangeWatch",
    "Changes",
    "Client",
    "EndpointError",
    "FailoverClient",
    "GapError",
    "Member",
    "NetworkBackend",
    "OneCluster",
    "Poll",
    "PollWatch",
    "Prefixes",
    "Present",
    "ProcessLocal",
    "Reply",
    "ReplyLostError",
    "Request",
    "Revision",
    "Stream",
    "StreamEndedError",
    "TimedSocket",
    "Watches",
    "alone",
    "contains",
    "keep_in_children",
    "number_of",
    "pop_tls_context",
    "request_timeout_option",
    "same_cluster_option",
    "tls_context",
    "tls_options",
]
