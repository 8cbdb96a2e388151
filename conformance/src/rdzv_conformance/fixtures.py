"""Fixtures that the tests of many plugins need, made for one service: ``etcd = served(EtcdServer)``."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest
from rdzv.registry import create_backend
from rdzv_core.backend import KeyValueBackend
from rdzv_core.parameters import RendezvousParameters

from .processes import Processes
from .proxy import FaultProxy
from .servers import LocalService, require_service

if TYPE_CHECKING:
    from .servers.certificates import Certificates


def served(
    service: type[LocalService],
    make: Callable[..., AbstractContextManager[Any]] | None = None,
    *arguments: Any,
    scope: Literal["session", "module", "class", "function"] = "session",
    **options: Any,
) -> Any:
    """A server that serves while tests of a scope use it; without its program they are skipped.

    Args:
        service: What needs the program.
        make: Makes the server or cluster; None: `service` does.
        arguments: For it.
        scope: Which tests share it; those that share must leave it running.
        options: For it.
    """

    def fixture() -> Iterator[Any]:
        with _serving(service, make, *arguments, **options) as server:
            yield server

    return pytest.fixture(scope=scope)(fixture)


def served_in_class(*arguments: Any, **options: Any) -> Any:
    """A fixture as `served` makes it, as a member of a test class: the tests of the class share the server."""

    def fixture(cls: Any) -> Iterator[Any]:
        with _serving(*arguments, **options) as server:
            yield server

    of_class: Any = classmethod(fixture)
    return pytest.fixture(scope="class")(of_class)


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Processes of the test's own; whatever is left of them in the end is killed."""
    with Processes() as made:
        yield made


@contextmanager
def _serving(
    service: type[LocalService],
    make: Callable[..., AbstractContextManager[Any]] | None = None,
    *arguments: Any,
    **options: Any,
) -> Iterator[Any]:
    require_service(service)
    with (make or service)(*arguments, **options) as server:
        yield server


def healed(name: str, clean: Callable[[Any], object] = lambda server: None) -> Any:
    """The server or cluster of the fixture `name`, for a test that may harm it; then it serves again and is cleaned."""

    def fixture(request: pytest.FixtureRequest) -> Iterator[Any]:
        server = request.getfixturevalue(name)
        yield server
        server.heal()
        clean(server)

    return pytest.fixture(fixture)


def proxied(name: str, kind: Callable[[int], FaultProxy]) -> Any:
    """A fault proxy of some kind on the way to the server of the fixture `name`, for one test."""

    def fixture(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
        with kind(request.getfixturevalue(name).get_port()) as proxy:
            yield proxy

    return pytest.fixture(fixture)


def connecting(make: Callable[..., KeyValueBackend]) -> Any:
    """What makes clients as `make` does, and closes them in the end."""

    def fixture() -> Iterator[Callable[..., KeyValueBackend]]:
        with ExitStack() as opened:

            def connect(*arguments: Any, **options: Any) -> KeyValueBackend:
                backend = make(*arguments, **options)
                opened.callback(backend.close)
                return backend

            yield connect

    return pytest.fixture(fixture)


def using(backend: str) -> Any:
    """What makes clients of the installed backend by options, as a user does (see `users.Create`), and closes them."""

    def create(endpoint: str, run_id: str = "run", **options: Any) -> KeyValueBackend:
        made, _ = create_backend(RendezvousParameters(backend, endpoint, run_id, 1, 1, **options))
        assert isinstance(made, KeyValueBackend)
        return made

    return connecting(create)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> "Certificates":
    """The certificates of servers and clients that know each other."""
    # Needs packages that not every plugin's tests do.
    from .servers.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))
