"""What the tests do with clients, again and again."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rdzv_conformance.meanwhile import once_counted
from rdzv_conformance.servers import EtcdServer

from rdzv_etcd_v3 import EtcdV3Backend

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> EtcdV3Backend: ...


def watching(server: EtcdServer, work: Callable[[], Any]) -> AbstractContextManager[Future[Any]]:
    """Do something in another thread meanwhile, whose watch has reached the server by now."""
    return once_counted(work, lambda: server.calls()["Watch"], "the watch")
