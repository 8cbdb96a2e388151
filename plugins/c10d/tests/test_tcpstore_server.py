"""`TcpStoreServer` of rdzv-conformance, here because torch is: on its real TCPStore."""

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import ServiceFailedError, ServiceMissingError, TcpStoreServer

from rdzv_c10d.store import stores


@pytest.fixture
def server() -> Iterator[TcpStoreServer]:
    with TcpStoreServer() as server:
        yield server


def _client(server: TcpStoreServer) -> Any:
    return stores().TCPStore(
        server.get_host(), server.get_port(), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1)
    )


def test_a_servers_life(server: TcpStoreServer) -> None:
    assert server.get_host() == "127.0.0.1"
    assert server.get_endpoint() == f"127.0.0.1:{server.get_port()}"
    assert Path(f"/proc/{server.pid}/exe").samefile(sys.executable)
    client = _client(server)
    client.set("a", b"\0\xff")
    assert client.get("a") == b"\0\xff"
    with pytest.raises(RuntimeError, match="was started already"):
        server.start()

    server.pause()
    assert server.is_running()
    server.resume()
    assert client.get("a") == b"\0\xff"

    endpoint = server.get_endpoint()
    server.kill()
    assert not server.is_running()
    with pytest.raises(RuntimeError):
        client.get("a")
    server.restart()
    assert server.get_endpoint() == endpoint
    assert not _client(server).check(["a"]), "it kept what a crash takes away"

    folder, pid = server._folder, server.pid
    assert folder
    server.stop()
    server.stop()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert server.get_port() == -1


def test_a_paused_server_can_be_stopped(server: TcpStoreServer) -> None:
    server.pause()
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5


def test_it_ends_with_its_parent() -> None:
    program = (
        "import os; from rdzv_conformance.servers import TcpStoreServer; server = TcpStoreServer(); server.start();"
        "print(server.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    owner = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    pid = int(owner.stdout)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the server to end")


def test_a_failure_shows_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    # For documentation: no machine has it (RFC 5737).
    monkeypatch.setattr(TcpStoreServer, "host", "192.0.2.1")
    monkeypatch.setattr("rdzv_conformance.servers.service.free_ports", lambda count, host: [1] * count)
    server = TcpStoreServer()
    with pytest.raises(ServiceFailedError, match=r"exit code (?s:.*)assign requested address"):
        server.start(num_retries=1)
    assert not server.is_running()


def test_without_torch_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServiceMissingError, match="pip install torch"):
        TcpStoreServer().start()
