"""A node of the suite is frozen while it holds no lock of a service that is files."""

import fcntl
import threading
from pathlib import Path
from typing import NoReturn

from rdzv_conformance.processes import Link, Processes
from rdzv_conformance.suite.nodes import Node


class _Locker:
    """Holds the lock of a file most of the time, whether or not it makes calls."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hold(self) -> None:
        """Nothing to end: what locks is no call."""

    def go_on(self) -> None:
        """Nothing was held."""

    def live(self, link: Link) -> NoReturn:
        threading.Thread(target=self._lock, daemon=True).start()
        link.obey(self)

    def _lock(self) -> None:
        pause = threading.Event()
        while True:
            with self._path.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                pause.wait(0.02)
            pause.wait(0.002)


def _is_free(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_frozen_node_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Processes() as processes:
        node = Node(processes.fork(_Locker(path).live), lambda: _is_free(path))
        for _ in range(10):
            with node.frozen():
                assert _is_free(path)
