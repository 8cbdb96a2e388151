"""What the tests do with clients, again and again."""

import importlib
import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol
from urllib.parse import urlencode

from rdzv_conformance.meanwhile import once_counted
from rdzv_conformance.servers import EtcdServer

from rdzv_etcd_v2 import EtcdV2Backend

CALL = 10.0

python_etcd = importlib.import_module("etcd")
"""python-etcd, which has no types."""


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: Any) -> EtcdV2Backend: ...


def request(server: EtcdServer, method: str, path: str, **fields: str) -> Any:
    """Call the v2 API behind a backend's back."""
    body = urlencode(fields).encode() if fields else None
    asked = urllib.request.Request(f"http://{server.get_endpoint()}/v2/keys{path}", body, method=method)
    with urllib.request.urlopen(asked, timeout=CALL) as answer:
        return json.load(answer)


def watching(server: EtcdServer, work: Callable[[], Any]) -> AbstractContextManager[Future[Any]]:
    """Do something in another thread meanwhile, whose stream has reached the server by now."""
    return once_counted(work, lambda: server.calls()["v2 WATCH"], "the stream")
