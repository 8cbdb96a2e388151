"""Keys that rdzv has not written stand in a real database among those of a run: its nodes go on, its status can be
read, and a purge removes all of them."""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv import RendezvousParameters
from rdzv.engine import notices, records
from rdzv.engine.handler import create_handler
from rdzv.inspector import RunInspector
from rdzv.registry import create_backend
from rdzv_cli.agent.ending import ExitStatus
from rdzv_cli.command import main
from rdzv_core import ANY
from rdzv_core.envelope import Envelope
from rdzv_sqlite import SqliteBackend

from .hostile import SEGMENTS, fuzzed, mutated
from .test_decoders import RECORDS

pytestmark = pytest.mark.soak

_ROOT = "rdzv/job/"
_LIMIT = 30.0
_OF_THE_RUN = (b"control/state", b"control/leader", b"control/status")
_SHOWN = (ExitStatus.DONE.value, ExitStatus.UNKNOWN.value)

FOLDERS = st.sampled_from(
    [
        *("control/failures", "control/pending", "control/drains", "control/quarantines", "control"),
        *("nodes", "nodes/0", "rounds", "rounds/1", "rounds/1/world", "heartbeats", "heartbeats/0"),
    ]
)


def _packed(payload: bytes) -> bytes:
    return Envelope.wrap(payload, writer="stranger").pack()


KEYS = st.one_of(
    FOLDERS.map(str.encode),
    st.builds(lambda folder, name: f"{folder}/{name}".encode(), FOLDERS, SEGMENTS),
    st.builds(lambda folder, name: folder.encode() + b"/" + name, FOLDERS, st.binary(min_size=1, max_size=5)),
)
NOTICES = [record for record in RECORDS if type(record).__module__ == notices.__name__]
VALUES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(RECORDS).flatmap(lambda record: mutated(json.loads(record.encode()))).map(_packed),
    st.sampled_from(NOTICES).map(lambda record: _packed(record.encode())),
)

FOREIGN = st.dictionaries(KEYS, VALUES, min_size=1, max_size=6)


class Run:
    """A run in a database."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "run.db")
        self.backend = SqliteBackend(self.path, "job")
        self.touch()

    def params(self) -> RendezvousParameters:
        return RendezvousParameters(
            backend="sqlite", endpoint=self.path, run_id="job", min_nodes=1, max_nodes=4,
            join_timeout=_LIMIT, last_call_timeout=0.1, keep_alive_interval=0.3,
        )  # fmt: skip

    def node(self) -> Any:
        params = self.params()
        backend, store = create_backend(params)
        return create_handler(store, backend, params)

    def write(self, foreign: dict[bytes, bytes]) -> list[bytes]:
        """Write keys beside those of the run, and say so to those who wait; returns those that were not there."""
        written = []
        with sqlite3.connect(self.path, timeout=_LIMIT) as connection:
            for key, value in foreign.items():
                row = _ROOT.encode() + key, value, time.monotonic_ns(), time.monotonic_ns()
                statement = "INSERT OR IGNORE INTO entry VALUES (CAST(? AS TEXT), ?, ?, ?, NULL)"
                if connection.execute(statement, row).rowcount:
                    written.append(key)
        connection.close()
        self.touch()
        return written

    def touch(self) -> None:
        """Write a key as others do, by which those who wait learn that something is new."""
        for folder in ("control", "nodes"):
            self.backend.put(f"{folder}/touch", _packed(b"{}"), expect=ANY, timeout=_LIMIT)
            self.backend.delete(f"{folder}/touch", timeout=_LIMIT)

    def remove(self, keys: list[bytes]) -> None:
        with sqlite3.connect(self.path, timeout=_LIMIT) as connection:
            for key in keys:
                connection.execute("DELETE FROM entry WHERE key = CAST(? AS TEXT)", (_ROOT.encode() + key,))
        connection.close()
        self.touch()

    def keys(self) -> list[bytes]:
        connection = sqlite3.connect(self.path, timeout=_LIMIT)
        connection.text_factory = bytes
        found = [key.removeprefix(_ROOT.encode()) for (key,) in connection.execute("SELECT key FROM entry")]
        connection.close()
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    one = Run(tmp_path)
    yield one
    one.backend.close()


def test_status_and_purge(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    @fuzzed(150)
    @given(FOREIGN)
    def try_some(foreign: dict[bytes, bytes]) -> None:
        # What an example that has failed leaves would fail the next ones, too.
        run.remove(run.keys())
        run.write(foreign)
        where = ["--backend", "sqlite", "--endpoint", run.path, "--run-id", "job"]
        for form in ([], ["--json"]):
            code, said = main(["status", *where, *form]), capsys.readouterr()
            # What is read of the run itself may be what cannot be read, or another version's: then that is said.
            assert code in _SHOWN or {*_OF_THE_RUN} & {*foreign} or "another version of rdzv" in said.err
            said.out.encode()
        with RunInspector(run.params()) as inspector:
            live = inspector.purge(0.5)
        left = run.keys()
        run.remove(left)
        if not live:
            # What belongs to later rounds and attempts stays, and so does what is not where rdzv writes.
            assert [key for key in left if not key.startswith(b"control") and not _is_later(key, left)] == []

    try_some()


def _is_later(key: bytes, left: list[bytes]) -> bool:
    folder, slash, rest = key.partition(b"/")
    if not slash:
        return any(_is_later(one, left) for one in left if one.startswith(folder + b"/"))
    return bool(records.number_of(rest.partition(b"/")[0].decode("utf-8", "surrogateescape")))


def test_nodes_go_on(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A node hears of another that comes, and both are in a world, with the foreign keys there."""
    caplog.set_level(logging.WARNING)
    first = run.node()
    first.next_rendezvous()

    @fuzzed(30)
    @given(FOREIGN.filter(lambda foreign: not any(key.startswith(b"nodes/0/") for key in foreign)))
    def try_some(foreign: dict[bytes, bytes]) -> None:
        written = run.write(foreign)
        second = run.node()
        with ThreadPoolExecutor(2) as pool:
            joined = pool.submit(second.next_rendezvous)
            _until(lambda: first.num_nodes_waiting() > 0)
            again = pool.submit(first.next_rendezvous)
            assert joined.result(_LIMIT).world_size == again.result(_LIMIT).world_size == 2
        second.leave("done")
        assert first.next_rendezvous().world_size == 1
        run.remove(written)

    try:
        try_some()
    finally:
        first.leave("done")
    assert [one.getMessage() for one in caplog.records if one.exc_info or not one.getMessage().isprintable()] == []


def _until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)
