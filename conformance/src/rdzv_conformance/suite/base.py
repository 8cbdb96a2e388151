"""What every part of the suite stands on: the rules for a subclass, and fresh clients of a fresh run for each test."""

import contextlib
import difflib
import inspect
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeGuard, TypeVar

import pytest
from _pytest.fixtures import FixtureFunctionDefinition
from rdzv_core.backend import Capability, Entry, KeyValueBackend, RendezvousBackend, Snapshot
from rdzv_core.errors import RendezvousError

from ..processes import Processes
from .contact import contact_of

_E = TypeVar("_E", bound=RendezvousError)

Connect = Callable[[str], KeyValueBackend]
"""What the fixture ``connect`` of a key-value backend gives: makes a new, independent client of the run of that id."""

CALL: Final = 10.0
"""Seconds that one call to a healthy service may take."""

ROOT: Final = "suite"
"""The suite keeps its own keys under this one, so that it can remove them."""

KEY: Final = "suite/key"
"""The key of tests that need but one."""

CONNECT: Final = "return lambda run_id: MyBackend(..., run_id)"
"""What the fixture ``connect`` does, as messages show it."""

DECLARED: Final = "rdzv_backend"
"""Under this name the reports of a test tell what the backend declares."""

CLUSTER: Final = "cluster"
"""The fixture by which a class brings several servers that serve together, of which tests may take one away."""

PARAMETERS: Final = "parameters"
"""The fixture by which a class says how users configure its backend."""

SECURED: Final = "secured"
"""The fixture by which a class brings services that demand certificates or credentials."""

SERVER: Final = "server"
"""The fixture by which a class brings a server that tests may stop."""

VERDICT: Final = "rdzv_verdict"
"""Under this name the reports of a test that does not apply tell why."""


class Verdict:
    """Why a test does not apply to a backend; plain text, which pytest-xdist can send from process to process."""

    UNSUPPORTED: Final = "unsupported"
    """The backend declares that it lacks what the test is about."""
    NOT_NEEDED: Final = "not needed"
    """The test is about the lack of what the backend has."""
    NOT_TRIED: Final = "not tried"
    """The test class does not bring what the test needs, and does not say why."""


_SETTINGS: Final = frozenset({"answer_of", "deviations", "lease_delay", "no_server", "shakes_hands"})
"""What the suite has a default for, and a class may say otherwise."""

_NEEDS: Final = {
    "harness": (SERVER, "so nothing can be stopped"),
    "locked": (SECURED, "so no client was refused"),
    "ensemble": (CLUSTER, "so no member of several was lost"),
}
"""What a fixture of the suite needs of a class, and what is not tried without it."""


def leave_out(test: pytest.Item, verdict: str, why: str) -> NoReturn:
    """End a test that does not apply; the summary tells why."""
    test.user_properties.append((VERDICT, verdict))
    pytest.skip(why)


class Clients(Protocol):
    """Makes clients for a test, and closes them at its end."""

    def __call__(self, run_id: str | None = None) -> KeyValueBackend:
        """A new, independent client: of the test's own run, or of another."""


def requires(capability: Capability) -> pytest.MarkDecorator:
    """Mark a test that makes sense with this capability only. Without it the test counts as unsupported."""
    return pytest.mark.rdzv_requires(capability)


def lacks(capability: Capability) -> pytest.MarkDecorator:
    """Mark the counterpart of the tests that require a capability: what must happen where it is missing."""
    return pytest.mark.rdzv_lacks(capability)


def feature(name: str, what: str) -> pytest.MarkDecorator:
    """Mark the test that shows a feature of rdzv on a backend: the feature's row in the table of features.

    Args:
        name: The feature, as users ask for it.
        what: What it does, in words that follow the name.
    """
    return pytest.mark.rdzv_feature(name, what)


class Conformance:
    """The rules that every part of the suite shares.

    A subclass outside the suite brings the fixture ``connect``: a function that takes a run id and makes
    a new, independent client of that run. It brings nothing that weakens a test: replacing or hiding
    a test or fixture of the suite is an error, and so is what keeps pytest from collecting the class.

    It may bring the fixture ``server``, a service that tests may stop (see `suite.server.Server`).
    """

    deviations: ClassVar[Mapping[str, str]] = {}
    """Tests that are known to fail, each with its reason. They are expected to fail: one that passes is an error."""

    no_server: ClassVar[str] = ""
    """Why there is no ``server``, if that is as it should be. The tests that need one then count as unsupported."""

    lease_delay: ClassVar[tuple[float, str] | None] = None
    """Where the service is slow to end leases: how many seconds later than the promised second, and why."""

    _needs_keys: ClassVar[bool] = False
    """Whether tests call methods that register backends lack."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse what would let a fault pass."""
        super().__init_subclass__(**kwargs)
        if not _is_of_suite(cls):
            suite = _members_of_suite(cls)
            _refuse_replacements(cls, suite)
            _refuse_constructors(cls)
            _refuse_idle_deviations(cls, suite)
            _refuse_unexplained_delay(cls)
            if cls.no_server and hasattr(cls, SERVER):
                raise TypeError(
                    f"{cls.__name__} has a fixture `{SERVER}`, and says in `no_server` why not: remove one."
                )

    @pytest.fixture
    def run_id(self) -> str:
        """The run that a test's clients belong to: another one for each test."""
        return f"conformance-{secrets.token_hex(6)}"

    @pytest.fixture(autouse=True)
    def applicable(
        self, request: pytest.FixtureRequest, connect: Callable[[str], RendezvousBackend], run_id: str
    ) -> Iterator[None]:
        """Let a test run only where it applies, by the backend's own declaration."""
        if not callable(connect):
            pytest.fail(f"`connect` of {type(self).__name__} must return a function that makes clients: {CONNECT}")
        contact = contact_of(request.node)
        with contact.made():
            backend = connect(run_id)
        _close(backend)
        self._leave_out_what_does_not_apply(request, backend)
        with contact.watched(type(backend)):
            yield

    def _leave_out_what_does_not_apply(self, request: pytest.FixtureRequest, backend: RendezvousBackend) -> None:
        name = backend.name
        capabilities: Collection[Capability] = getattr(backend, "capabilities", ())
        unsupported: Mapping[Capability, str] = getattr(backend, "unsupported", {})
        declared = {
            "name": name,
            "capabilities": sorted(one.name for one in capabilities),
            "unsupported": {one.name: reason for one, reason in unsupported.items()},
            "no_server": self.no_server,
            "lease_delay": self.lease_delay,
        }
        request.node.user_properties.append((DECLARED, declared))
        for (wanted,) in (mark.args for mark in request.node.iter_markers("rdzv_requires")):
            if wanted not in capabilities:
                why = unsupported.get(wanted, "no reason declared")
                leave_out(request.node, Verdict.UNSUPPORTED, f"'{name}' has no {wanted.name}: {why}")
        for (unwanted,) in (mark.args for mark in request.node.iter_markers("rdzv_lacks")):
            if unwanted in capabilities:
                leave_out(request.node, Verdict.NOT_NEEDED, f"'{name}' has {unwanted.name}")
        # By its fixture, not by the mark of its class: a class that derives from all parts inherits that for all tests.
        for fixture, (needed, lack) in _NEEDS.items():
            if fixture in request.fixturenames and not hasattr(type(self), needed):
                reason = self.no_server if needed == SERVER else ""
                left = f"{type(self).__name__} brings no fixture `{needed}`, {lack}"
                leave_out(request.node, Verdict.UNSUPPORTED if reason else Verdict.NOT_TRIED, reason or left)

    @pytest.fixture
    def clients(self, connect: Callable[[str], Any], run_id: str) -> Iterator[Callable[..., Any]]:
        """Makes clients; in the end they are closed, and the suite's keys are gone."""
        runs = {run_id}
        with contextlib.ExitStack() as opened:

            def client(other: str | None = None) -> Any:
                run = run_id if other is None else other
                runs.add(run)
                backend = connect(run)
                opened.callback(_close, backend)
                if self._needs_keys and not isinstance(backend, KeyValueBackend):
                    pytest.fail(
                        f"{type(backend).__name__} is no KeyValueBackend. If it is a register backend, "
                        f"derive {type(self).__name__} from RegisterConformance instead of BackendConformance."
                    )
                return backend

            yield client
        for run in runs:
            remove_keys(connect(run))

    @pytest.fixture
    def client(self, clients: Callable[[], Any]) -> Any:
        """One client."""
        return clients()

    @pytest.fixture
    def processes(self) -> Iterator[Processes]:
        """Processes of their own; whatever is left of them in the end is killed."""
        with Processes() as processes:
            yield processes


def _close(backend: RendezvousBackend) -> None:
    """Close a client, if it can be closed: a register backend has no such method."""
    if isinstance(backend, KeyValueBackend):
        backend.close()


def refusal(call: Callable[[], object], kind: type[_E], where: str = "") -> _E:
    """The error in which a call must end; the message names what it does instead, and the rule that it breaks.

    Args:
        call: What is refused.
        kind: The error.
        where: When it is, in words, where the call alone does not say it.
    """
    try:
        answer = call()
    except kind as error:
        return error
    except RendezvousError as error:
        pytest.fail(f"{kind.__name__} must be raised{where}, and this was: {error!r}")
    except Exception as error:
        raise AssertionError(
            f"only errors of the RendezvousError family leave a backend, raised from the client's own: here "
            f"{kind.__name__}{where}. This one left it as it was: {error!r}"
        ) from error
    pytest.fail(f"{kind.__name__} must be raised{where}, and the answer was {answer!r}")


def entry_of(snapshot: Snapshot, name: str) -> Entry:
    """A key's entry in a snapshot in which it must be."""
    if (entry := snapshot.entries.get(name)) is None:
        pytest.fail(f"'{name}' was written, and a snapshot lacks it: it has {sorted(snapshot.entries)}")
    return entry


def remove_keys(backend: RendezvousBackend) -> None:
    """Leave no key behind; of a register backend only the service's owner can remove the register."""
    if isinstance(backend, KeyValueBackend):
        with contextlib.closing(backend):
            for prefix in (ROOT, "control", "nodes", "rounds", "heartbeats"):
                backend.delete(prefix, timeout=CALL)


def _is_of_suite(cls: type) -> bool:
    return f"{cls.__module__}.".startswith(f"{__package__}.")


def _members_of_suite(cls: type) -> dict[str, object]:
    """The tests and fixtures that the suite's classes give to `cls`, as the suite defines them."""
    members: dict[str, object] = {}
    for base in filter(_is_of_suite, cls.__mro__):
        for name, member in vars(base).items():
            if not name.startswith("_") and name not in _SETTINGS:
                members.setdefault(name, member)
    return members


def is_fixture(member: object) -> TypeGuard[FixtureFunctionDefinition]:
    """Whether a member of a class is one of pytest's fixtures."""
    return isinstance(member, FixtureFunctionDefinition)


def _refuse_replacements(cls: type[Conformance], suite: Mapping[str, object]) -> None:
    replaced = {name for name, original in suite.items() if inspect.getattr_static(cls, name) is not original}
    # pytest goes by the name that a fixture gives itself: @pytest.fixture(name=...).
    own = (member for base in cls.__mro__ if not _is_of_suite(base) for member in vars(base).values())
    replaced.update(member.name for member in own if is_fixture(member) and member.name in suite)
    if replaced:
        raise TypeError(
            f"{cls.__name__} replaces '{min(replaced)}' of the conformance suite. If the backend is known to fail "
            f"a test, say why: deviations = {{'test_...': 'the reason'}}."
        )


def _refuse_constructors(cls: type[Conformance]) -> None:
    for name in ("__init__", "__new__"):
        if inspect.getattr_static(cls, name) is not inspect.getattr_static(object, name):
            raise TypeError(
                f"{cls.__name__} has the method `{name}`, so pytest would not collect it, and it would test nothing. "
                "What tests need, fixtures bring."
            )


def _refuse_unexplained_delay(cls: type[Conformance]) -> None:
    match cls.lease_delay:
        case None:
            return
        case (int() | float() as seconds, str() as reason) if seconds > 0 and reason.strip():
            return
    raise TypeError(
        f"{cls.__name__}.lease_delay must be seconds above 0 and the reason, (2.0, 'it looks every 2 s'), "
        f"not {cls.lease_delay!r}."
    )


def _refuse_idle_deviations(cls: type[Conformance], suite: Mapping[str, object]) -> None:
    if not isinstance(cls.deviations, Mapping):
        raise TypeError(
            f"{cls.__name__}.deviations must be a dict of tests and reasons, {{'test_...': 'the reason'}}, "
            f"not {cls.deviations!r}."
        )
    tests = [name for name in suite if name.startswith("test")]
    for test, reason in cls.deviations.items():
        name = str(test).partition("[")[0]
        if name not in tests:
            near = difflib.get_close_matches(name, tests, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{cls.__name__} declares a deviation from '{test}', which the suite does not have.{hint}")
        if not (isinstance(reason, str) and reason.strip()):
            raise TypeError(f"{cls.__name__} declares a deviation from '{test}' without a reason.")
