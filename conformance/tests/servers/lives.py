"""What holds for every server when it is stopped."""

from pathlib import Path

from rdzv_conformance.servers import ConsulServer, EtcdServer, ZooKeeperServer


def check_stop(server: ConsulServer | EtcdServer | ZooKeeperServer) -> None:
    """Stop a server, twice: nothing of it is left."""
    folder, pid = server._folder, server.pid
    assert folder
    server.stop()
    server.stop()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not server.is_running()
    assert server.get_port() == -1
