"""What the command says, on a service that lives in this process."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version

import pytest

import rdzv
from rdzv import (
    BackendPlugin,
    DynamicRendezvousHandler,
    RendezvousParameters,
    hookimpl,
    register_hooks,
    unregister_hooks,
)
from rdzv.cli import main, run

from .memory import MemoryBackend, MemoryService

RUN_ID = "red\x1b[31m\n" + 5000 * "x"
SHOWN = r"red\x1b[31m\n" + 25 * "x" + "..." + 38 * "x"


@pytest.fixture
def memory() -> Iterator[None]:
    """A backend of the name ``memory``, whose service outlives its clients."""
    service = MemoryService()

    class Plugin:
        @hookimpl
        def rdzv_backend(self) -> BackendPlugin:
            def create(params: RendezvousParameters) -> tuple[MemoryBackend, None]:
                return MemoryBackend(service, params.run_id), None

            return BackendPlugin("memory", "For tests.", (), create, lambda: MemoryBackend, "")

    plugin = Plugin()
    register_hooks(plugin)
    yield
    unregister_hooks(plugin)


@pytest.mark.usefixtures("memory")
def test_any_run_id_is_shown_on_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--backend", "memory", "--run-id", RUN_ID)
    assert main(["close", *where]) == 0
    assert capsys.readouterr().out.startswith(f"The run '{SHOWN}' is closed: no reason given (by the operator (")
    assert main(["status", *where]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"run {SHOWN}: closed, attempt 0, round 0"
    assert re.fullmatch(r"  closed by the operator \(.*\): no reason given", second)
    assert main(["run", *where, "--nnodes", "1", "--", "true"]) == 4
    first, second = capsys.readouterr().err.splitlines()
    assert f": run '{SHOWN}', backend memory, " in first
    assert f": The rendezvous '{SHOWN}' was closed by the operator (" in second


LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} rdzv\[(alpha\.[0-9a-f]+)\]: "


def test_a_traceback_has_a_prefix_on_every_line(capfd: pytest.CaptureFixture[str]) -> None:
    script = """
import logging
from rdzv.cli import log
log.begin(0)
log.speak_as("alpha.1")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("rdzv").exception("it failed")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) > 3
    assert all(re.match(LINE, line) for line in lines)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rdzv {rdzv.__version__}\n"
    assert rdzv.__version__ == version("rdzv")


def test_whoever_waits_hears_of_a_silent_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MemoryBackend()
    handler = DynamicRendezvousHandler.from_backend("run", None, backend, 1, 1, keep_alive_interval=0.1)
    progress = run._Progress(handler, 1, 1)
    monkeypatch.setattr(run, "_EVERY", 0.0)

    def waits(seconds: float) -> str:
        progress.waiting(seconds)
        return capsys.readouterr().err.rstrip()

    try:
        silent = "rdzv: waiting for 1 node (the service has not answered for 12 s: no error yet), 12 s of 600 s"
        assert waits(12.0) == silent
        handler.next_rendezvous()
        assert "answered" not in waits(12.0)
        backend.disconnect("it is away")
        deadline = time.monotonic() + 10
        while handler.trouble is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert re.search(r"\(the service has not answered for \d s: it is away\), 12 s of 600 s$", waits(12.0))
        # On a terminal, a line that wraps could not be taken away again.
        monkeypatch.setattr(progress, "_terminal", True)
        monkeypatch.setattr(progress, "_said", 0.0)
        monkeypatch.setenv("COLUMNS", "60")
        shown = waits(12.0).removeprefix("\r\x1b[K")
        assert shown.startswith("rdzv: waiting")
        assert shown.endswith("12 s of 600 s")
        assert len(shown) < 60
    finally:
        backend.reconnect()
        handler.leave()


def test_ctrl_c_while_the_command_is_imported_ends_it_quietly() -> None:
    interrupted = """
import sys
from importlib.metadata import entry_points

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "rdzv":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
(script,) = entry_points(group="console_scripts", name="rdzv")
sys.exit(script.load()())
"""
    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
