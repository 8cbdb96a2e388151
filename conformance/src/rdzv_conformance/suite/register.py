"""Register backends: the register with a fencing token. The first tests are what PyTorch demands of its backends."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from rdzv_core.backend import MAX_PAYLOAD, RendezvousBackend

from ..linearizability import assert_linearizable
from ..processes import Processes
from .base import CALL, Conformance
from .histories import RegisterValue, operations, record

_FOREIGN_TOKENS: Final = {
    "text": "invalid",
    "empty text": "",
    "bytes": b"invalid",
    "zero": 0,  # what some services call the version of a missing key
    "negative": -1,
    "huge": 10**30,
    "fraction": 1.5,
    "tuple": (),
    "object": object(),
}

_PROCESSES: Final = 4
_ROUNDS: Final = 10
_TURNS: Final = 40

Registers = Callable[[], RendezvousBackend]

foreign_tokens = pytest.mark.parametrize("token", _FOREIGN_TOKENS.values(), ids=_FOREIGN_TOKENS.keys())
"""Tokens that no backend made."""

_true_tokens = {name: token for name, token in _FOREIGN_TOKENS.items() if token}
_true_foreign_tokens = pytest.mark.parametrize("token", _true_tokens.values(), ids=_true_tokens.keys())
"""Those that PyTorch's own class does not take for None."""


class RegisterConformance(Conformance):
    """A compare-and-set register whose token fences off a client that has seen an older state.

    It can be used alone for a register backend, such as one written for PyTorch.
    """

    def test_register_is_empty_at_first(self, client: RendezvousBackend) -> None:
        """`get_state` returns None if there is no state."""
        assert client.get_state() is None, "a run that is new has a state"

    def test_register_returns_what_was_set(self, client: RendezvousBackend) -> None:
        """`get_state` returns the state and a token."""
        client.set_state(b"x")
        state, token = _there(client)
        assert state == b"x"
        assert token is not None, "None as a token means an empty register"

    def test_register_is_set_if_empty(self, client: RendezvousBackend) -> None:
        """Without a token `set_state` creates the state."""
        assert _set(client, b"x") == (b"x", _there(client)[1], True)

    def test_register_is_set_if_token_is_current(self, client: RendezvousBackend) -> None:
        """With the current token `set_state` writes, and the token is another one afterwards."""
        _, first, _ = _set(client, b"x")
        state, second, has_set = _set(client, b"y", first)
        assert (state, has_set) == (b"y", True)
        assert first != second, "the token does not change with the state: an old one would still open the door"
        assert _there(client) == (b"y", second)

    def test_register_is_kept_if_token_is_old(self, client: RendezvousBackend) -> None:
        """With an old token `set_state` changes nothing and returns the present state."""
        _, first, _ = _set(client, b"x")
        _, second, _ = _set(client, b"y", first)
        assert _set(client, b"z", first) == (b"y", second, False), "an old token was accepted"
        assert _there(client) == (b"y", second)

    def test_register_is_kept_if_token_is_missing(self, client: RendezvousBackend) -> None:
        """Without a token `set_state` does not overwrite: it returns the present state."""
        _, token, _ = _set(client, b"x")
        assert _set(client, b"y") == (b"x", token, False), "a state was overwritten by a creation"
        assert _there(client) == (b"x", token)

    @foreign_tokens
    def test_register_is_kept_if_token_is_foreign(self, client: RendezvousBackend, token: Any) -> None:
        """A token that the backend did not make, of whatever type, matches nothing."""
        _, current, _ = _set(client, b"x")
        assert _set(client, b"y", token) == (b"x", current, False), f"the token {token!r} was accepted"
        assert _there(client) == (b"x", current)

    @_true_foreign_tokens
    def test_register_stays_empty_if_token_is_foreign(self, client: RendezvousBackend, token: Any) -> None:
        """A token creates nothing: only None does."""
        result = client.set_state(b"x", token)
        assert result is None, f"an empty register with the token {token!r} answered {result}"
        assert client.get_state() is None, f"the token {token!r} created a state"

    def test_register_is_shared_by_all_clients(self, clients: Registers) -> None:
        """What one client has set, another one reads at once, and may replace by the token that it read."""
        one, other = clients(), clients()
        one.set_state(b"0")
        for number in range(1, 20):
            writer, reader = (one, other) if number % 2 else (other, one)
            _, token = _there(writer)
            assert _set(writer, b"%d" % number, token)[2], "the current token was refused"
            assert _there(reader)[0] == b"%d" % number, "a stale state was read"

    @pytest.mark.parametrize(
        "state",
        [b"", bytes(range(256)), b"\0", b"a\nb\r\n", bytes(MAX_PAYLOAD)],
        ids=["empty", "all bytes", "zero", "lines", "256 KiB"],
    )
    def test_register_keeps_every_byte(self, client: RendezvousBackend, state: bytes) -> None:
        """A state is any bytes, up to 256 KiB."""
        client.set_state(state)
        # Compared outside of the assertion: under CI pytest would show the whole difference, for hours.
        intact = _there(client)[0] == state
        assert intact, "the state was changed on its way"

    def test_register_under_concurrent_processes_loses_no_update(
        self, clients: Registers, processes: Processes
    ) -> None:
        """Compare-and-set by several processes at once: every write that was applied counts, once.

        Every state names its writer, as rdzv's do: PyTorch's own class takes an equal one for its own.
        """

        def count(register: RendezvousBackend, writer: int) -> None:
            for _ in range(_ROUNDS):
                has_set = False
                while not has_set:
                    found = register.get_state()
                    number, token = (int(found[0].split()[0]), found[1]) if found else (0, None)
                    result = register.set_state(b"%d by %d" % (number + 1, writer), token)
                    has_set = result is not None and result[2]

        processes.together(lambda: _used(clients()), count, _PROCESSES)
        counted = int(_there(clients())[0].split()[0])
        assert counted == _PROCESSES * _ROUNDS, f"{_PROCESSES * _ROUNDS - counted} updates were lost"

    def test_register_is_linearizable_among_processes(self, clients: Registers, processes: Processes) -> None:
        """One order of reads and writes explains all answers that processes got at once."""

        def use(register: RendezvousBackend, process: int) -> list[Any]:
            return record(RegisterValue(register), process, lambda turn: turn < _TURNS)

        assert_linearizable(operations(processes.together(lambda: _used(clients()), use, _PROCESSES)))

    def test_register_wakes_who_waits_for_a_change(self, clients: Registers) -> None:
        """`wait_state` returns when the state differs from the token, also if it does so already."""
        one, other = clients(), clients()
        if not hasattr(one, "wait_state"):
            pytest.skip("without `wait_state` rdzv polls")
        _, first, _ = _set(one, b"x")
        woken = threading.Thread(target=one.wait_state, args=(first, 60.0))
        woken.start()
        _set(other, b"y", first)
        woken.join(CALL)
        assert not woken.is_alive(), "a change did not end `wait_state`"
        began = time.monotonic()
        one.wait_state(first, 60.0)
        assert time.monotonic() - began < CALL, "`wait_state` sleeps although the state has changed before"

    def test_register_wait_ends_in_time(self, client: RendezvousBackend) -> None:
        """`wait_state` returns after its timeout if nothing changes."""
        if not hasattr(client, "wait_state"):
            pytest.skip("without `wait_state` rdzv polls")
        for token in (None, _set(client, b"x")[1]):
            began = time.monotonic()
            client.wait_state(token, 0.3)
            assert time.monotonic() - began < 0.3 + 1, "`wait_state` outlasts its timeout"


def _used(register: RendezvousBackend) -> RendezvousBackend:
    """A register that is connected."""
    register.get_state()
    return register


def _there(register: RendezvousBackend) -> tuple[bytes, Any]:
    """What the register holds."""
    found = register.get_state()
    assert found is not None, "the register is empty although it was set"
    return found


def _set(register: RendezvousBackend, state: bytes, token: Any = None) -> tuple[bytes, Any, bool]:
    """Set the register, where it cannot be empty afterwards."""
    result = register.set_state(state, token)
    assert result is not None, "`set_state` answered that the register is empty, which it is not"
    return result
