"""TLS and credentials: who may is let in, and who may not is refused at once; the error holds no secret."""

import copy
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pytest
import rdzv
from rdzv.registry import create_backend
from rdzv_core.backend import ABSENT, ANY, MAX_PAYLOAD, Capability, KeyValueBackend, PutOutcome, Snapshot
from rdzv_core.credentials import file_option, take_secrets
from rdzv_core.errors import RendezvousDeniedError
from rdzv_core.options import secret_names
from rdzv_core.plugins import load_backend_plugin

from .base import CALL, KEY, ROOT, SECURED, Conformance, Verdict, leave_out, refusal, remove_keys, requires
from .calls import has_own
from .entry import Parameters

Options = Mapping[str, Any]

_AT_ONCE: Final = 2.5
"""Seconds within which a refusal is raised: a call is tried once, and not until the call's time is over."""


@dataclass(frozen=True)
class Stranger:
    """One who may not use a service.

    Attributes:
        parameters: How that user configures the backend.
        says: What the error must tell, as regular expressions.
    """

    parameters: Parameters
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Secured:
    """A service that demands something of its clients.

    Attributes:
        parameters: How a user configures the backend who may use it.
        strangers: How those do who may not, by what is wrong with them.
        also: Further ways of those who may.
        reader: How one does who may read, and not write; None: there is none here.
        follows_files: Whether the backend reads its files again once they have changed: those of options of the kind
            ``path``, and of secrets.
    """

    parameters: Parameters
    strangers: Mapping[str, Stranger]
    also: Mapping[str, Parameters] = field(default_factory=dict)
    reader: Parameters | None = None
    follows_files: bool = False

    @classmethod
    def by_options(
        cls,
        backend: str,
        endpoint: str,
        right: Options,
        strangers: Mapping[str, tuple[Options, *tuple[str, ...]]],
        *,
        also: Mapping[str, Options] | None = None,
        reader: Options | None = None,
        follows_files: bool = False,
    ) -> Self:
        """The same, where all differ in their options only.

        Args:
            backend: The plugin's name.
            endpoint: Where the service is; an option ``endpoint`` of one user says otherwise.
            right: The options of who may.
            strangers: Those of who may not, and what the error must tell each.
            also: Those of further ones who may.
            reader: Those of who may only read.
            follows_files: See `Secured`.
        """

        def configure(options: Options) -> Parameters:
            given: dict[str, Any] = {"endpoint": endpoint, **options}
            return lambda run_id: rdzv.RendezvousParameters(
                backend=backend, run_id=run_id, min_nodes=1, max_nodes=1, **given
            )

        return cls(
            configure(right),
            {name: Stranger(configure(options), tuple(says)) for name, (options, *says) in strangers.items()},
            {name: configure(options) for name, options in (also or {}).items()},
            None if reader is None else configure(reader),
            follows_files,
        )


class SecurityConformance(Conformance):
    """`Capability.TLS` and `Capability.AUTH`, for classes with the fixture ``secured``, a `Secured` for either."""

    @pytest.fixture
    def locked(self, request: pytest.FixtureRequest, run_id: str) -> Iterator[Secured]:
        """The service for the capability that a test is about; without keys in the end."""
        given: Mapping[Capability, Secured] = request.getfixturevalue(SECURED)
        ((capability,),) = (mark.args for mark in request.node.iter_markers("rdzv_requires"))
        if capability not in given:
            why = f"the fixture `{SECURED}` of {type(self).__name__} gives nothing for {capability.name}"
            leave_out(request.node, Verdict.NOT_TRIED, why)
        yield given[capability]
        remove_keys(_make(given[capability].parameters(run_id)))

    @requires(Capability.TLS)
    def test_encrypted_service_is_used(self, locked: Secured, run_id: str) -> None:
        """Everything that a backend can do, large values too, over TLS."""
        _use(locked, run_id)

    @requires(Capability.TLS)
    def test_end_that_cannot_be_trusted_is_refused(self, locked: Secured, run_id: str) -> None:
        """A client with the wrong authority or certificate gets `RendezvousDeniedError` at once, at every call."""
        _assert_strangers_are_refused(locked, run_id)

    @requires(Capability.TLS)
    def test_certificates_that_change_are_read_again(
        self, request: pytest.FixtureRequest, locked: Secured, run_id: str, tmp_path: Path
    ) -> None:
        """A client whose files were a stranger's is let in when they have changed, without being made anew."""
        _assert_files_are_followed(request.node, locked, run_id, tmp_path)

    @requires(Capability.AUTH)
    def test_credentials_let_in(self, locked: Secured, run_id: str) -> None:
        """Everything that a backend can do, for a client that has shown credentials."""
        _use(locked, run_id)

    @requires(Capability.AUTH)
    def test_wrong_credentials_are_refused(self, locked: Secured, run_id: str) -> None:
        """A client without them gets `RendezvousDeniedError` at once, at every call; the error repeats no secret."""
        _assert_strangers_are_refused(locked, run_id)

    @requires(Capability.AUTH)
    def test_secrets_that_change_in_files_are_read_again(
        self, request: pytest.FixtureRequest, locked: Secured, run_id: str, tmp_path: Path
    ) -> None:
        """The same for passwords and tokens."""
        _assert_files_are_followed(request.node, locked, run_id, tmp_path)

    @requires(Capability.AUTH)
    def test_reader_cannot_write(self, request: pytest.FixtureRequest, locked: Secured, run_id: str) -> None:
        """A client that may read and not write can read, and is refused every kind of write."""
        if locked.reader is None:
            why = f"the fixture `{SECURED}` of {type(self).__name__} knows no `reader`, a client that may not write"
            leave_out(request.node, Verdict.NOT_TRIED, why)
        with closing(_make(locked.parameters(run_id))) as owner, closing(_make(locked.reader(run_id))) as reader:
            mine = owner.put(KEY, b"mine", expect=ANY, timeout=CALL).entry
            assert mine is not None
            assert reader.read(KEY, timeout=CALL) == mine, "a client that may read does not read what is there"
            assert reader.read_all(ROOT, timeout=CALL).entries == {KEY: mine}, (
                "a client that may read does not get what is there"
            )
            for expect in (ANY, ABSENT, mine.token):
                refusal(lambda e=expect: reader.put(KEY, b"x", expect=e, timeout=CALL), RendezvousDeniedError)  # type: ignore[misc]
            refusal(lambda: reader.delete(KEY, timeout=CALL), RendezvousDeniedError)
            if has_own(reader, "create_all"):
                made = {"suite/pages/0": b"x", "suite/pages/1": b"x"}
                refusal(lambda: reader.create_all(made, timeout=CALL), RendezvousDeniedError)
            if has_own(reader, "delete_version"):
                refusal(lambda: reader.delete_version(KEY, mine.token, timeout=CALL), RendezvousDeniedError)
            there = owner.read_all(ROOT, timeout=CALL).entries
            assert there == {KEY: mine}, "who may only read changed something"


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
    for parameters in (locked.parameters, *locked.also.values()):
        with closing(_make(parameters(run_id))) as client:
            since, large = client.read_all(ROOT, timeout=CALL), bytes(MAX_PAYLOAD)
            lease = client.open_lease(5, timeout=CALL) if Capability.LEASE in client.capabilities else None
            put = client.put(KEY, large, expect=ANY, lease=lease, timeout=CALL)
            assert put.outcome is PutOutcome.APPLIED, f"a put of who may write answered {put.outcome}"
            arrived = client.wait(ROOT, since, timeout=CALL).entries == {KEY: put.entry}
            assert arrived, "a waiter did not get what was written"
            assert lease is None or lease.keep_alive(CALL)
            assert client.local_address, "a connected client does not know its own address"
            client.delete(ROOT, timeout=CALL)
            assert client.read(KEY, timeout=CALL) is None, "a deleted key is still there"


def _assert_strangers_are_refused(locked: Secured, run_id: str) -> None:
    assert locked.strangers, "no login here is a stranger's, so it was not tried whether one is refused"
    with closing(_make(locked.parameters(run_id))) as owner:
        mine = owner.put(KEY, b"mine", expect=ANY, timeout=CALL).entry
        _assert_each_is_refused(locked.strangers, run_id)
        assert owner.read(KEY, timeout=CALL) == mine, "a stranger who was refused changed something"


def _assert_each_is_refused(strangers: Mapping[str, Stranger], run_id: str) -> None:
    for name, stranger in strangers.items():
        params = stranger.parameters(run_id)
        secrets = _secrets(params)
        with closing(_make(params)) as client:
            for call in _calls(client):
                began = time.monotonic()
                error = refusal(call, RendezvousDeniedError)
                took = time.monotonic() - began
                assert took < _AT_ONCE, f"{name}: it took {took:.1f} s to be refused; retrying is pointless"
                told = [one for one, secret in secrets.items() if secret in str(error)]
                assert not told, f"{name}: the error repeats the {told[0]}"
                unsaid = [words for words in stranger.says if not re.search(words, str(error), re.DOTALL)]
                assert not unsaid, f"{name}: the error does not say '{unsaid[0]}': {error}"


def _assert_files_are_followed(test: pytest.Item, locked: Secured, run_id: str, folder: Path) -> None:
    if not locked.follows_files:
        why = f"the fixture `{SECURED}` does not say `follows_files`: this backend reads its files once"
        leave_out(test, Verdict.NOT_TRIED, why)
    right, tried = locked.parameters(run_id), []
    with closing(_make(right)) as owner:
        mine = owner.put(KEY, b"mine", expect=ANY, timeout=CALL).entry
    for name, stranger in locked.strangers.items():
        ours, theirs = _in_files(right, folder), _in_files(stranger.parameters(run_id), folder)
        if (ours.endpoint, ours.config) != (theirs.endpoint, theirs.config):
            continue
        tried.append(name)
        with closing(_make(theirs)) as client:
            refusal(lambda c=client: c.read(KEY, timeout=CALL), RendezvousDeniedError)  # type: ignore[misc]
            _in_files(right, folder)
            try:
                assert client.read(KEY, timeout=CALL) == mine, f"{name}: something else is read now than was written"
            except RendezvousDeniedError as error:
                raise AssertionError(f"{name}: the file is right now, and was not read again: {error}") from error
    assert tried, "no stranger here differs from who may only by what stands in a file, so it was not tried"


def _in_files(params: rdzv.RendezvousParameters, folder: Path) -> rdzv.RendezvousParameters:
    """The same parameters, with what can stand in a file in a new file of `folder`, always of the same name."""
    moved = copy.copy(params)
    moved.config = dict(params.config)
    for option in load_backend_plugin(params.backend).options:
        given = moved.config.get(option.name)
        if given is None or not (option.kind == "path" or option.secret):
            continue
        content = Path(given).read_bytes() if option.kind == "path" else str(moved.config.pop(option.name)).encode()
        path = folder / option.name
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.chmod(0o600)
        # As a tool that rotates secrets does it: the old file is whole until the new one takes its place.
        os.replace(new, path)
        moved.config[option.name if option.kind == "path" else file_option(option.name)] = str(path)
    return moved


def _calls(client: KeyValueBackend) -> list[Callable[[], object]]:
    calls: list[Callable[[], object]] = [
        lambda: client.read(KEY, timeout=CALL),
        lambda: client.read_all(ROOT, timeout=CALL),
        lambda: client.put(KEY, b"x", expect=ANY, timeout=CALL),
        lambda: client.delete(KEY, timeout=CALL),
        lambda: client.wait(ROOT, Snapshot(), timeout=CALL),
    ]
    if Capability.LEASE in client.capabilities:

        def put_on_a_lease() -> object:
            lease = client.open_lease(5, timeout=CALL)
            return client.put(KEY, b"x", expect=ANY, lease=lease, timeout=CALL)

        calls.append(put_on_a_lease)
    return calls
