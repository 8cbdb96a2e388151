"""TLS and credentials: who may is let in, and who may not is refused at once; the error holds no secret."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pytest
import rdzv
from rdzv.backend import ANY, MAX_PAYLOAD, Capability, KeyValueBackend, Outcome, Snapshot
from rdzv.credentials import take_secrets
from rdzv.errors import RendezvousDeniedError
from rdzv.options import secret_names
from rdzv.plugins import create_backend, load_backend_plugin

from .base import CALL, KEY, ROOT, SECURED, VERDICT, Conformance, Verdict, refusal, remove_keys, requires
from .entry import Parameters

__all__ = ["Secured", "SecurityConformance"]

_AT_ONCE: Final = 2.5
"""Seconds within which a refusal is raised: a call is tried once, and not until the call's time is over."""


@dataclass(frozen=True)
class Secured:
    """A service that demands something of its clients.

    Attributes:
        parameters: How a user configures the backend who may use it.
        strangers: How those do who may not, by what is wrong with them.
    """

    parameters: Parameters
    strangers: Mapping[str, Parameters]


class SecurityConformance(Conformance):
    """`Capability.TLS` and `Capability.AUTH`, for classes with the fixture ``secured``, a `Secured` for either."""

    @pytest.fixture
    def locked(self, request: pytest.FixtureRequest, run_id: str) -> Iterator[Secured]:
        """The service for the capability that a test is about; without keys in the end."""
        given: Mapping[Capability, Secured] = request.getfixturevalue(SECURED)
        ((capability,),) = (mark.args for mark in request.node.iter_markers("rdzv_requires"))
        if capability not in given:
            request.node.user_properties.append((VERDICT, Verdict.NOT_TRIED))
            pytest.skip(f"the fixture `{SECURED}` of {type(self).__name__} gives nothing for {capability.name}")
        yield given[capability]
        remove_keys(_make(given[capability].parameters(run_id)))

    @requires(Capability.TLS)
    def test_encrypted_service_is_used(self, locked: Secured, run_id: str) -> None:
        """Everything that a backend can do, large values too, over TLS."""
        _use(locked, run_id)

    @requires(Capability.TLS)
    def test_end_that_cannot_be_trusted_is_refused(self, locked: Secured, run_id: str) -> None:
        """Who has the wrong authority or certificate is refused at once, by `RendezvousDeniedError`, at every call."""
        _assert_strangers_are_told(locked, run_id)

    @requires(Capability.AUTH)
    def test_credentials_let_in(self, locked: Secured, run_id: str) -> None:
        """Everything that a backend can do, for who has shown credentials."""
        _use(locked, run_id)

    @requires(Capability.AUTH)
    def test_wrong_credentials_are_refused(self, locked: Secured, run_id: str) -> None:
        """Who may not is refused at once, by `RendezvousDeniedError`, at every call; secrets are not repeated."""
        _assert_strangers_are_told(locked, run_id)


def _make(params: rdzv.RendezvousParameters) -> KeyValueBackend:
    backend, _ = create_backend(params)
    assert isinstance(backend, KeyValueBackend)
    return backend


def _secrets(params: rdzv.RendezvousParameters) -> dict[str, str]:
    """The secrets that the backend declares and these parameters give, as they are or in a file."""
    names = secret_names(load_backend_plugin(params.backend).options)
    given = take_secrets(params.config, names)
    return {name: str(given[name]) for name in names if given.get(name)}


def _use(locked: Secured, run_id: str) -> None:
    with closing(_make(locked.parameters(run_id))) as client:
        since, large = client.read_all(ROOT, timeout=CALL), bytes(MAX_PAYLOAD)
        lease = client.open_lease(5, timeout=CALL) if Capability.LEASE in client.capabilities else None
        put = client.put(KEY, large, expect=ANY, lease=lease, timeout=CALL)
        assert put.outcome is Outcome.WON, f"a put of who may write answered {put.outcome}"
        arrived = client.wait(ROOT, since, timeout=CALL).entries == {KEY: put.entry}
        assert arrived, "a waiter did not get what was written"
        assert lease is None or lease.keep_alive(CALL)
        client.delete(ROOT, timeout=CALL)
        assert client.read(KEY, timeout=CALL) is None, "a deleted key is still there"


def _assert_strangers_are_told(locked: Secured, run_id: str) -> None:
    assert locked.strangers, "nobody is a stranger here, so it was not tried whether one is refused"
    with closing(_make(locked.parameters(run_id))) as owner:
        mine = owner.put(KEY, b"mine", expect=ANY, timeout=CALL).entry
        _assert_each_is_told(locked.strangers, run_id)
        assert owner.read(KEY, timeout=CALL) == mine, "a stranger who was refused changed something"


def _assert_each_is_told(strangers: Mapping[str, Parameters], run_id: str) -> None:
    for name, parameters in strangers.items():
        params = parameters(run_id)
        secrets = _secrets(params)
        with closing(_make(params)) as client:
            for call in (
                lambda client=client: client.read(KEY, timeout=CALL),
                lambda client=client: client.read_all(ROOT, timeout=CALL),
                lambda client=client: client.put(KEY, b"x", expect=ANY, timeout=CALL),
                lambda client=client: client.delete(KEY, timeout=CALL),
                lambda client=client: client.wait(ROOT, Snapshot(), timeout=CALL),
            ):
                began = time.monotonic()
                error = refusal(call, RendezvousDeniedError)
                took = time.monotonic() - began
                assert took < _AT_ONCE, f"{name}: it took {took:.1f} s to be refused; retrying is pointless"
                told = [one for one, secret in secrets.items() if secret in str(error)]
                assert not told, f"{name}: the error repeats the {told[0]}"
