"""A TCPStore of PyTorch's, served by a process of its own."""

import importlib.util
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from .requirement import ServiceMissingError
from .service import LocalService

# It listens itself, on IPv4: torch would look up every client's name, by DNS where it is an IPv6 one.
_SERVE = """
import signal, socket, sys
from torch.distributed import TCPStore
host, port = sys.argv[1], int(sys.argv[2])
listener = socket.create_server((host, port), backlog=4096)
store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
while True:
    signal.pause()
"""


class TcpStoreServer(LocalService):
    """A real ``torch.distributed.TCPStore`` on a free port of 127.0.0.1, which belongs to no run.

    ::

        with TcpStoreServer() as server:
            backend = connect_to(server.get_endpoint())

    It keeps nothing: after `kill` and `restart` it is empty. Needs torch, and takes a second or two to
    import it.
    """

    program = "tcpstore"
    port_count = 1

    @classmethod
    def find_binary(cls) -> Path:
        """The Python that has torch, which must be this one.

        Raises:
            ServiceMissingError: It has not; the message says how to get it.
        """
        if importlib.util.find_spec("torch") is None:
            raise ServiceMissingError(f"No torch for this Python ({sys.executable}). Run `pip install torch`.")
        return Path(sys.executable)

    def _command(self, data_dir: Path) -> Sequence[str | Path]:
        return [self.find_binary(), "-c", _SERVE, self.host, str(self.get_port())]

    def _is_ready(self) -> bool:
        socket.create_connection((self.host, self.get_port()), 1).close()
        return True
