import socket
import threading

import pytest

from rdzv_core.errors import RendezvousStateError
from rdzv_core.handler import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo


class Store:
    """A store with the two methods that matter here; `get` waits, as every store's does."""

    def __init__(self, **values: bytes) -> None:
        self.values = values
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, timeout=30)
            return self.values[key]


class PyTorchStyleHandler(RendezvousHandler):
    """What a third party wrote for PyTorch: the seven methods and nothing else."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def get_backend(self) -> str:
        return "third-party"

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(Store(), 0, 1, RendezvousStoreInfo("127.0.0.1", 1))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        self.calls.append("set_closed")

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "job-7"

    def shutdown(self) -> bool:
        self.calls.append("shutdown")
        return True


class LeavingHandler(PyTorchStyleHandler):
    def leave(self, reason: str = "") -> bool:
        self.calls.append(f"leave: {reason}")
        return True


class FailingHandler(PyTorchStyleHandler):
    def leave(self, reason: str = "") -> bool:
        raise OSError("no way to tell anyone")


def test_a_handler_needs_pytorchs_seven_methods() -> None:
    assert RendezvousHandler.__abstractmethods__ == {
        "get_backend", "next_rendezvous", "is_closed", "set_closed", "num_nodes_waiting", "get_run_id", "shutdown",
    }  # fmt: skip


def test_a_handler_written_for_pytorch_works() -> None:
    handler = PyTorchStyleHandler()
    assert handler.use_agent_store is False
    assert handler.leave("it is tired") is True
    assert handler.calls == ["shutdown"]


def test_a_block_that_ends_shuts_down() -> None:
    with LeavingHandler() as handler:
        assert handler.calls == []
    assert handler.calls == ["shutdown"]


@pytest.mark.parametrize("code", [None, 0])
def test_a_program_that_exits_well_shuts_down(code: int | None) -> None:
    handler = LeavingHandler()
    with pytest.raises(SystemExit), handler:
        raise SystemExit(code)
    assert handler.calls == ["shutdown"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_block_that_fails_only_leaves_and_says_why(error: BaseException, reason: str) -> None:
    handler = LeavingHandler()
    with pytest.raises(type(error)), handler:
        raise error
    assert handler.calls == [f"leave: {reason}"]


def test_a_block_that_fails_shuts_down_a_handler_that_cannot_leave() -> None:
    handler = PyTorchStyleHandler()
    with pytest.raises(ZeroDivisionError), handler:
        raise ZeroDivisionError
    assert handler.calls == ["shutdown"]


def test_a_failure_to_leave_is_logged_and_hides_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), FailingHandler():
        raise ZeroDivisionError
    assert "Leaving the run 'job-7' failed." in caplog.text
    assert "no way to tell anyone" in caplog.text


def test_info_takes_pytorchs_arguments_and_has_more() -> None:
    store, where = Store(), RendezvousStoreInfo("10.0.0.7", 29500)
    info = RendezvousInfo(store, 1, 2, where)
    assert (info.store, info.rank, info.world_size, info.bootstrap_store_info) == (store, 1, 2, where)
    assert (info.round, info.run_id, info.nodes) == (0, "", ())
    info = RendezvousInfo(
        store=store, rank=1, world_size=2, bootstrap_store_info=where, round=3, run_id="r", nodes=("a", "b")
    )
    assert (info.round, info.run_id, info.nodes) == (3, "r", ("a", "b"))
    with pytest.raises(AttributeError):
        info.rank = 5  # type: ignore[misc]


def test_all_ranks_learn_where_rank_0_is() -> None:
    store = Store()
    learned: list[RendezvousStoreInfo] = []
    others = [
        threading.Thread(target=lambda rank=rank: learned.append(RendezvousStoreInfo.build(rank, store, None)))
        for rank in (1, 2)
    ]
    for other in others:
        other.start()
    mine = RendezvousStoreInfo.build(0, store, "10.0.0.7", server_port=29500)
    for other in others:
        other.join(30)
    assert mine == RendezvousStoreInfo("10.0.0.7", 29500)
    assert learned == [mine, mine]
    assert store.values == {"MASTER_ADDR": b"10.0.0.7", "MASTER_PORT": b"29500"}


def test_the_port_is_a_free_one() -> None:
    where = RendezvousStoreInfo.build(0, Store(), "127.0.0.1", server_port=0)
    with socket.create_server((where.master_addr, where.master_port)):
        pass


def test_the_address_is_found_without_this_machines_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a name was looked up")

    for name in ("gethostname", "getfqdn", "gethostbyname", "gethostbyaddr"):
        monkeypatch.setattr(socket, name, refuse)
    where = RendezvousStoreInfo.build(0, Store())
    with socket.create_server((where.master_addr, 0), family=socket.getaddrinfo(where.master_addr, 0)[0][0]):
        pass  # it is an address of this machine


@pytest.mark.parametrize(("address", "port"), [(b"10.0.0.7", b"http"), (b"10.0.0.7", b""), (b"\xff", b"1")])
def test_nonsense_in_the_store_is_a_state_error(address: bytes, port: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="Rank 0 cannot be at"):
        RendezvousStoreInfo.build(1, Store(MASTER_ADDR=address, MASTER_PORT=port), None)
