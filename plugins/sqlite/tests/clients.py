"""What the tests do with clients, again and again."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from rdzv_core.errors import RendezvousConnectionError

from rdzv_sqlite import SqliteBackend

Connect = Callable[[], SqliteBackend]
"""Makes clients of one run, and closes them in the end."""


def check_close_ends(client: SqliteBackend, calls: Sequence[Future[Any]]) -> None:
    """Calls of this client that are under way end at once when it is closed, and say so."""
    began = time.monotonic()
    client.close()
    for call in calls:
        with pytest.raises(RendezvousConnectionError, match="is closed"):
            call.result(5)
    assert time.monotonic() - began < 1
