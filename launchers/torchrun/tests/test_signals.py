"""A signal for which torch's agent has a handler ends the call that it meets, wherever that is."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, cast

import pytest
import rdzv
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import _terminate_process_handler
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from rdzv_torchrun.rendezvous import TorchrunHandler
from rdzv_torchrun.signals import ended_by_signals
from rdzv_torchrun.store import TorchStore


class Register(C10dRendezvousBackend):
    """torch's own register; after a certain call of the main thread the process gets SIGTERM."""

    def __init__(self) -> None:
        super().__init__(dist.HashStore(), "job")  # type: ignore[attr-defined]
        self.calls_left = 0
        self.sent = False

    def get_state(self) -> Any:
        """See torch."""
        answer = super().get_state()
        self._count()
        return answer

    def set_state(self, state: bytes, token: Any = None) -> Any:
        """See torch."""
        answer = super().set_state(state, token)
        self._count()
        return answer

    def _count(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.calls_left -= 1
            if self.calls_left == 0:
                self.sent = True
                signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def _torchs_handler() -> Iterator[None]:
    """As an agent leaves it when its first workers start."""
    before = signal.signal(signal.SIGTERM, _terminate_process_handler)
    yield
    now = signal.signal(signal.SIGTERM, before)
    assert now is _terminate_process_handler


@contextmanager
def node(register: Register, least: int) -> Iterator[TorchrunHandler]:
    """A node whose calls go to that register; one that never has a world gives up soon."""
    soon, late = timedelta(seconds=0.4), timedelta(seconds=60)
    timeout = rdzv.RendezvousTimeout(join=late if least == 1 else soon, last_call=soon / 40, close=late, heartbeat=late)
    bare = rdzv.DynamicRendezvousHandler.from_backend(
        "job",
        None,
        cast("Any", register),
        least,
        2,
        timeout=timeout,
        keep_alive_interval=0.2,
        keep_alive_max_attempt=50,
    )
    handler = TorchrunHandler(bare, "register")
    try:
        yield handler
    finally:
        register.calls_left = 0
        handler.shutdown()


def is_ended(register: Register, call: Callable[[], object], calls: int) -> bool:
    """Send a signal after so many calls of the service; whether it came, and then whether it has ended the call."""
    register.calls_left, register.sent = calls, False
    try:
        call()
    except SignalException:
        assert register.sent
        return True
    except RendezvousTimeoutError:
        # What a node gets that waits until its time is over.
        pass
    assert not register.sent, f"the signal after call {calls} of the service has ended nothing"
    return False


def count_ended(make: Callable[[Register, int], bool]) -> int:
    """Send the signal after the first call of the service, after the second ..., until there are no more."""
    calls = 1
    while make(Register(), calls):
        calls += 1
    return calls - 1


@pytest.mark.parametrize("least", [1, 2], ids=["until it has a world", "until it gives up"])
def test_it_ends_a_rendezvous(least: int) -> None:
    def join(register: Register, calls: int) -> bool:
        with node(register, least) as handler:
            return is_ended(register, handler.next_rendezvous, calls)

    # A lease, a record; who gives up looks around, takes back its record and looks again.
    assert count_ended(join) >= (3 if least == 1 else 8)


@pytest.mark.parametrize("method", ["shutdown", "set_closed"])
def test_it_ends_what_a_member_does_last(method: str) -> None:
    def end(register: Register, calls: int) -> bool:
        with node(register, 1) as handler:
            handler.next_rendezvous()
            return is_ended(register, getattr(handler, method), calls)

    assert count_ended(end) >= 2


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.set("key", "value"),
        lambda store: store.add("counter", 1),
        lambda store: store.multi_get(["here"]),
    ],
    ids=["set", "add", "multi_get"],
)
def test_it_ends_a_call_of_the_store(use: Callable[[TorchStore], object]) -> None:
    def call(register: Register, calls: int) -> bool:
        with node(register, 1) as handler:
            store = handler.next_rendezvous().store
            store.set("here", "value")
            assert isinstance(store, TorchStore)
            return is_ended(register, lambda: use(store), calls)

    assert count_ended(call) >= 1


def test_it_reaches_the_caller_through_a_plugin() -> None:
    class Plugin:
        @rdzv.hookimpl
        def rdzv_health_check(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    plugin = Plugin()
    rdzv.register_hooks(plugin)
    try:
        register = Register()
        with node(register, 1) as handler, pytest.raises(SignalException):
            handler.next_rendezvous()
    finally:
        rdzv.unregister_hooks(plugin)


def test_one_that_comes_while_the_handlers_are_put_back_ends_the_call_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1,SIGTERM")
    replace, sent = signal.signal, False

    def put_back(number: int, handler: Any) -> Any:
        nonlocal sent
        if handler is signal.SIG_DFL and not sent:
            sent = True
            signal.raise_signal(signal.SIGTERM)
        return replace(number, handler)

    monkeypatch.setattr("signal.signal", put_back)
    with pytest.raises(SignalException):
        ended_by_signals(lambda: None, unhandled=True)
    assert sent
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is _terminate_process_handler


def test_one_that_comes_while_an_inner_call_ends_leaves_no_handler_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGUSR1")
    replace, sent = signal.signal, False

    def put_back(number: int, handler: Any) -> Any:
        nonlocal sent
        before = replace(number, handler)
        # The inner call puts back the outer one's handlers, which end the outer one.
        if number == signal.SIGTERM and not sent and depth == 2 and getattr(handler, "__self__", None) is not None:
            sent = True
            signal.raise_signal(signal.SIGTERM)
        return before

    depth = 0

    def inner() -> None:
        nonlocal depth
        depth = 2

    outer = replace(signal.SIGUSR1, _terminate_process_handler)
    try:
        monkeypatch.setattr("signal.signal", put_back)
        with pytest.raises(SignalException):
            ended_by_signals(lambda: ended_by_signals(inner))
        assert sent
        assert signal.getsignal(signal.SIGUSR1) is _terminate_process_handler
        assert signal.getsignal(signal.SIGTERM) is _terminate_process_handler
    finally:
        replace(signal.SIGUSR1, outer)


@pytest.mark.parametrize(
    ("number", "names"), [(signal.SIGINT, None), (signal.SIGUSR1, "SIGTERM, SIGUSR1")], ids=["torch's own", "named"]
)
def test_each_signal_that_torch_handles_ends_a_call(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, names: str | None
) -> None:
    if names is None:
        monkeypatch.delenv("TORCHELASTIC_SIGNALS_TO_HANDLE", raising=False)
    else:
        monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", names)

    def survive() -> None:
        with suppress(Exception):
            signal.raise_signal(number)

    before = signal.signal(number, _terminate_process_handler)
    try:
        with pytest.raises(SignalException):
            ended_by_signals(survive)
        assert signal.getsignal(number) is _terminate_process_handler
    finally:
        signal.signal(number, before)
