"""How the backend is found, and its options."""

import gc
import os
import re
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rdzv_cli.command import main
from rdzv_conformance.processes import Processes
from rdzv_core.backend import ABSENT, ANY, PutOutcome
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters

from rdzv_c10d import C10dRendezvousBackend, create_backend
from rdzv_c10d.locator import TemporaryFileLocator
from rdzv_c10d.round_store import RoundStore
from rdzv_c10d.store import stores

from .clients import CALL, Connect, ForkedStore, is_served


def test_parameters_make_backend_and_store(server: ForkedStore, connect: Connect) -> None:
    # An option that is not the backend's is rdzv's affair.
    params = RendezvousParameters(
        "c10d", server.endpoint, "job/7", 1, 2, prefix="rdzv", is_host="no", read_timeout="5", join_timeout=5
    )
    backend, store = create_backend(params)
    store.set("greeting", b"hello")
    assert store.get("greeting") == b"hello"
    assert isinstance(store, RoundStore)
    assert RoundStore(connect(server.endpoint, "job/7")).list_keys() == ["greeting"]
    assert RoundStore(connect(server.endpoint, "job/8")).list_keys() == []
    assert backend.local_address == "127.0.0.1"
    backend.close()


def test_a_file_may_be_the_store(tmp_path: Path) -> None:
    params = RendezvousParameters("c10d", str(tmp_path / "store"), "run", 1, 2, store_type="file")
    backend, store = create_backend(params)
    assert not (tmp_path / "store").exists()
    store.set("greeting", b"hello")
    assert store.get("greeting") == b"hello"
    assert (tmp_path / "store").exists()
    backend.close()


@pytest.mark.parametrize(
    ("endpoint", "options", "complaint"),
    [
        ("a:1,b:2", {}, "one endpoint"),
        ("tcp://a:1", {}, "scheme"),
        ("a:0", {}, "port"),
        ("a:1", {"is_host": "maybe"}, "is_host"),
        ("a:1", {"read_timeout": "0"}, "read_timeout"),
        ("a:1", {"read_timeout": "abc"}, "read_timeout.*'abc'.*number of seconds above zero"),
        ("a:1", {"store_type": "dummy"}, "tcp, file"),
        ("a:1", {"prefix": "/"}, "prefix '/' is empty.*such as rdzv"),
        ("", {"store_type": "file"}, "path.*such as /shared"),
        ("localhost:29400", {"store_type": "file"}, "path"),
    ],
)
def test_what_cannot_be_used_is_refused(endpoint: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=complaint):
        create_backend(RendezvousParameters("c10d", endpoint, "run", 1, 2, **options))


def test_a_port_of_its_own_is_for_who_serves_the_store() -> None:
    with pytest.raises(RendezvousParameterError, match="port that all know"):
        create_backend(RendezvousParameters("c10d", "localhost:0", "run", 1, 1, is_host=False))
    # An address for documentation, which no machine has.
    backend, _ = create_backend(RendezvousParameters("c10d", "192.0.2.1:0", "run", 1, 1))
    with pytest.raises(RendezvousParameterError, match=r"no address of this machine\. Write localhost:0"):
        backend.read("key", timeout=CALL)
    backend.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_two_runs_of_one_node_have_a_port_each(host: str) -> None:
    """PyTorch's recipe for several jobs on one machine; even the run may be the same."""
    params = RendezvousParameters("c10d", f"{host}:0", "run", 1, 1)
    two = [create_backend(params)[0] for _ in range(2)]
    for number, backend in enumerate(two):
        assert backend.put("nodes/a", b"%d" % number, expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
        assert backend.local_address in ("127.0.0.1", "::1")
    for number, backend in enumerate(two):
        entry = backend.read("nodes/a", timeout=CALL)
        assert entry is not None
        assert entry.value == b"%d" % number
        backend.close()


PRIVATE = [
    (["--endpoint", "localhost:0"], "'localhost:0' leaves the port to each process.* such as 29400"),
    (["--option", "store_type=file"], "no endpoint each process has a file of its own.*such as /shared/job-7.store"),
]


@pytest.mark.parametrize(("arguments", "complaint"), PRIVATE)
@pytest.mark.parametrize("command", ["run", "status", "close"])
def test_the_command_refuses_what_each_process_has_for_itself(
    command: str, arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs would have a store each, and the status would be that of an empty one."""
    program = ["--nnodes", "1", "--nproc-per-node", "2", "--", "touch", str(tmp_path / "ran")]
    rest = program if command == "run" else []
    assert main([command, "--backend", "c10d", *arguments, "--run-id", "job", *rest]) == 2
    assert re.search(complaint, " ".join(capsys.readouterr().err.split()))
    assert not (tmp_path / "ran").exists()


def test_the_programs_of_a_node_share_a_file_that_has_a_name(tmp_path: Path) -> None:
    program = (
        "import datetime, rdzv; world = rdzv.current(); store = world.store; store.set(f'from/{world.rank}', b'x');"
        "store.wait([f'from/{1 - world.rank}'], datetime.timedelta(seconds=30))"
    )
    where = ["--backend", "c10d", "--option", "store_type=file", "--endpoint", str(tmp_path / "store")]
    node = ["--run-id", "job", "--nnodes", "1", "--nproc-per-node", "2", "--option", "last_call_timeout=1"]
    assert main(["run", *where, *node, "--", sys.executable, "-c", program]) == 0


def test_a_run_of_one_node_may_leave_the_file_to_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    params = RendezvousParameters("c10d", "", "run", 1, 1, store_type=" File ")
    two = [create_backend(params)[0] for _ in range(2)]
    assert list(tmp_path.iterdir()) == []
    for backend in two:
        assert backend.put("nodes/a", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
    assert len(list(tmp_path.iterdir())) == 2
    with Processes() as processes:
        # A fork has an end of its own.
        processes.fork(lambda link: two[0].close()).result()
    assert len(list(tmp_path.iterdir())) == 2
    for backend in two:
        backend.close()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    backend, _ = create_backend(params)
    with pytest.raises(RendezvousParameterError, match=r"missing.*TMPDIR"):
        backend.read("nodes/a", timeout=CALL)
    backend.close()


WATCHES = """
import sys, rdzv
from rdzv_core.parameters import RendezvousParameters
from rdzv_c10d import create_backend
backend, _ = create_backend(RendezvousParameters("c10d", "", "run", 1, 1, store_type="file"))
backend.wait("nodes", backend.read_all("nodes", timeout=120), timeout=0.1)
if sys.argv[1] == "closes":
    backend.close()
"""


UNREACHABLE = """
import os
from datetime import timedelta
from rdzv_c10d.store import stores
try:
    stores().TCPStore("127.0.0.1", 1, is_master=False, timeout=timedelta(seconds=1))
except stores().DistError:
    print(os.environ.get("TORCH_CPP_LOG_LEVEL"))
"""


@pytest.mark.parametrize(("level", "is_quiet"), [(None, True), ("WARNING", False)])
def test_torch_is_quiet_where_the_user_does_not_say_otherwise(level: str | None, is_quiet: bool) -> None:
    """A reader of its standard error that stalls would hold up the thread that calls it."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    environment |= {"TORCH_CPP_LOG_LEVEL": level} if level else {}
    command = [sys.executable, "-c", UNREACHABLE]
    done = subprocess.run(command, check=True, env=environment, timeout=240, capture_output=True, text=True)
    assert done.stdout == f"{level}\n"
    assert (done.stderr == "") == is_quiet


@pytest.mark.parametrize("end", ["closes", "just ends"])
def test_a_process_leaves_no_file_of_its_own_behind(tmp_path: Path, end: str) -> None:
    """Also where its wakeup key, which it rings to end the thread that listens, would make the file again."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WATCHES, end], check=True, env=environment, timeout=240)
    assert list(tmp_path.iterdir()) == []


def test_a_thread_that_is_late_does_not_make_the_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    locator = TemporaryFileLocator()
    store = locator.connect(CALL)
    locator.release(at_once=False)
    with pytest.raises(RuntimeError):
        store.set("key", b"late")
    with pytest.raises(RendezvousParameterError, match="no folder"):
        locator.connect(CALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("no/store", "There is no folder '{folder}/no'.*Make it first"),
        (".", "'{folder}' is a folder"),
        ("/dev/null", "'/dev/null' is no file"),
        # Not even root may make a file of such a name, as others may not in a folder that is not theirs.
        ("x" * 256, "'{folder}/x+' cannot be read and written: File name too long.*new file, in a folder"),
    ],
)
def test_a_path_that_can_hold_no_store_is_named(tmp_path: Path, path: str, complaint: str) -> None:
    params = RendezvousParameters("c10d", str(tmp_path / path), "run", 1, 1, store_type="file")
    backend, _ = create_backend(params)
    with pytest.raises(RendezvousParameterError, match=complaint.format(folder=tmp_path)):
        backend.read("key", timeout=CALL)
    backend.close()


def test_prefixes_are_texts_and_no_paths() -> None:
    store = stores().HashStore()
    # The second would be within the first, were they paths.
    for prefix, run_id in (("rdzv", "job"), ("rdzv/job/value", "nodes"), ("..", "job"), ("a\nb", "job")):
        backend = C10dRendezvousBackend(store, run_id, prefix=prefix)
        assert backend.put("nodes/a", b"x", expect=ABSENT, timeout=CALL).outcome is PutOutcome.APPLIED
        backend.close()
    first = C10dRendezvousBackend(store, "job")
    first.delete("nodes", timeout=CALL)
    assert first.read_all("nodes", timeout=CALL).entries == {}
    first.close()
    second = C10dRendezvousBackend(store, "nodes", prefix="rdzv/job/value")
    assert second.read("nodes/a", timeout=CALL) is not None
    second.close()


@pytest.mark.parametrize("kind", ["HashStore", "FileStore", "TCPStore", "PrefixStore"])
def test_any_store_of_torchs_may_be_brought(kind: str, tmp_path: Path) -> None:
    torch = stores()
    made = {
        "HashStore": lambda: torch.HashStore(),
        "FileStore": lambda: torch.FileStore(str(tmp_path / "store")),
        "TCPStore": lambda: torch.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
        "PrefixStore": lambda: torch.PrefixStore("a", torch.PrefixStore("b", torch.HashStore())),
    }[kind]()
    made.set_timeout(timedelta(seconds=0.5))
    one, other = C10dRendezvousBackend(made, "run"), C10dRendezvousBackend(made, "run")
    since = one.read_all("control", timeout=CALL)
    other.put("control/state", b"x", expect=ANY, timeout=CALL)
    assert one.wait("control", since, timeout=CALL).entries["control/state"].value == b"x"
    assert made.timeout == timedelta(seconds=0.5)
    one.close()
    other.close()
    made.set("mine", "still")
    assert made.get("mine") == b"still"


def test_a_store_that_was_brought_ends_with_its_owner() -> None:
    store = stores().TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    endpoint = f"127.0.0.1:{store.port}"
    backend = C10dRendezvousBackend(store, "run")
    backend.read("control/state", timeout=CALL)
    backend.close()
    assert is_served(endpoint)
    gc.disable()
    try:
        # No garbage of the test holds it.
        del store
        assert not is_served(endpoint)
    finally:
        gc.enable()


def test_a_run_needs_a_name() -> None:
    with pytest.raises(ValueError, match="run id"):
        C10dRendezvousBackend(stores().HashStore(), "")
