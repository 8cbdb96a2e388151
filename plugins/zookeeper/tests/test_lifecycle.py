"""Sessions: nothing keeps one that is not needed, and a fork takes none away."""

import threading
import time

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.meanwhile import follow, in_background
from rdzv_conformance.processes import Link, Processes
from rdzv_conformance.servers import ZooKeeperServer
from rdzv_core.backend import ANY

from .clients import CALL, Connect, watching


def test_clients_take_no_thread_and_leave_no_session(quiet_zookeeper: ZooKeeperServer, connect: Connect) -> None:
    """That they leave no file and no key is tried by the suite."""
    threads = threading.active_count()
    for _ in range(10):
        backend = connect(quiet_zookeeper.get_endpoint())
        since = backend.read_all("key", timeout=CALL)
        lease = backend.open_lease(10, timeout=CALL)
        backend.wait("key", since, timeout=0.001)
        assert threading.active_count() == threads
        lease.revoke(CALL)
        backend.close()
    eventually(lambda: quiet_zookeeper.sessions() == 0, "the sessions to end", 2)


def test_a_fork_amid_a_wait_leaves_the_parent_its_session(zookeeper: ZooKeeperServer, connect: Connect) -> None:
    """The child closes its copy of the connection, and the parent does not even notice."""
    backend = connect(zookeeper.get_endpoint(), run_id="fork")
    since = backend.read_all("shared", timeout=CALL)

    def child(link: Link) -> None:
        backend.put("shared", b"from the child", expect=ANY, timeout=CALL)
        backend.close()

    with in_background(lambda: follow(backend, "shared", since, "shared", b"x", 30)) as followed:
        eventually(watching(zookeeper), "the watch")
        channel = backend.link.session.channel(time.monotonic() + CALL)
        with Processes() as processes:
            for _ in range(5):
                processes.fork(child).result()
        backend.put("shared", b"x", expect=ANY, timeout=CALL)
        followed.result(30)
        assert backend.link.session.channel(time.monotonic() + CALL) is channel
