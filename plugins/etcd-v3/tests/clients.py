"""What the tests do with clients, again and again."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import in_background
from rdzv_conformance.servers import EtcdServer

from rdzv_etcd_v3 import EtcdV3Backend

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> EtcdV3Backend: ...


@contextmanager
def watching(server: EtcdServer, work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Do something in another thread meanwhile, whose watch has reached the server by now."""
    before = server.calls()["Watch"]
    with in_background(work) as future:
        eventually(lambda: server.calls()["Watch"] > before, "the watch")
        yield future
