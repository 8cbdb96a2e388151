import re
import sys
from collections.abc import Callable

import pytest
from core.tests.test_registry import Handler, make
from rdzv_core.errors import RendezvousError, RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.registry import RendezvousHandlerRegistry

from rdzv.registry import get_rendezvous_handler, rendezvous_handler_registry

from .conftest import Install

PLUGIN = """
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import Option
from rdzv_core.backend import BackendPlugin


asked = []

def create_backend(params):
    asked.append(params)
    raise {error}

options = (Option("color", "text", None, "Help.", choices=("red", "green")),)
BACKEND = BackendPlugin("A backend.", options, create_backend, None, {endpoint})
"""
STOP = 'RendezvousParameterError("create_backend was asked")'


@pytest.fixture
def asked(install: Install) -> Callable[[], RendezvousParameters]:
    """What `create_backend` of the installed backend 'painted' was asked for, last."""
    install("acme-painted", PLUGIN.format(error=STOP, endpoint="None"), {"rdzv": "painted"})

    def last() -> RendezvousParameters:
        params: RendezvousParameters = sys.modules["acme_painted"].asked[-1]
        return params

    return last


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_handler_registry, "_registry", {})
    rendezvous_handler_registry.register("dummy", Handler)


@pytest.mark.usefixtures("registered")
def test_a_creator_registered_by_hand_wins_over_an_installed_backend(install: Install) -> None:
    install("acme-dummy", "raise RuntimeError('imported')", {"rdzv": "dummy"})
    assert isinstance(get_rendezvous_handler(make(anything="goes")), Handler)
    assert isinstance(rendezvous_handler_registry.create_handler(make()), Handler)


@pytest.mark.usefixtures("registered")
def test_a_registry_of_ones_own_discovers_nothing(asked: Callable[[], RendezvousParameters]) -> None:
    with pytest.raises(RendezvousParameterError, match="Did you forget to call `register`"):
        RendezvousHandlerRegistry().create_handler(make("painted"))
    with pytest.raises(RendezvousParameterError, match="create_backend was asked"):
        rendezvous_handler_registry.create_handler(make("painted"))


def test_an_unknown_backend_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^The rendezvous backend 'xyz' is not registered: no installed package"):
        get_rendezvous_handler(make("xyz"))


def test_an_installed_backend_is_asked_with_the_parameters(asked: Callable[[], RendezvousParameters]) -> None:
    params = make("painted", color="red", join_timeout="0.5", labels="a=b", timeout=900)
    with pytest.raises(RendezvousParameterError, match="create_backend was asked"):
        get_rendezvous_handler(params)
    assert asked() == params


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "The backend 'painted' knows no option 'colour'. Did you mean 'color'?"),
        ({"min": 2}, "The backend 'painted' knows no option 'min'. It is given beside the options."),
        ({"join_timout": "5"}, "The backend 'painted' knows no option 'join_timout'. Did you mean 'join_timeout'?"),
        (
            {"zzz": "5"},
            "The backend 'painted' knows no option 'zzz'. It knows: alone_timeout, attempt, "
            "behind_nat, cas_backoff_max_seconds, close_timeout, color, ",
        ),
        ({"color": "blue"}, "The option 'color' cannot be 'blue': one of red, green is expected."),
        ({"attempt": "x"}, "The option 'attempt' cannot be 'x'"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_an_unknown_option_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(RendezvousParameterError, match=f"^{re.escape(message)}"):
        get_rendezvous_handler(make("painted", **options))


def test_a_missing_endpoint_is_refused(asked: Callable[[], RendezvousParameters]) -> None:
    with pytest.raises(RendezvousParameterError, match="'painted' needs an endpoint, such as host:port, and none"):
        get_rendezvous_handler(make("painted", endpoint=""))


def test_a_missing_endpoint_becomes_the_backends_own(install: Install) -> None:
    install("acme-painted", PLUGIN.format(error=STOP, endpoint="'home:1'"), {"rdzv": "painted"})
    params = make("painted", endpoint="")
    with pytest.raises(RendezvousParameterError, match="create_backend was asked"):
        get_rendezvous_handler(params)
    assert sys.modules["acme_painted"].asked[-1].endpoint == "home:1"
    assert params.endpoint == ""


def test_a_library_that_is_missing_is_named(install: Install) -> None:
    install("acme-painted", PLUGIN.format(error="ImportError('no paint')", endpoint="None"), {"rdzv": "painted"})
    with pytest.raises(RendezvousError, match=r"'painted' misses what it needs \(no paint\)") as caught:
        get_rendezvous_handler(make("painted"))
    assert isinstance(caught.value.__cause__, ImportError)


REGISTER = """
import threading
from rdzv_core.backend import RendezvousBackend
from rdzv_core.backend import BackendPlugin

class Register(RendezvousBackend):
    def __init__(self, name):
        self._name, self._state, self._token, self._lock = name, None, 0, threading.Lock()

    @property
    def name(self):
        return self._name

    def get_state(self):
        with self._lock:
            return self._state and (self._state, self._token)

    def set_state(self, state, token=None):
        with self._lock:
            won = token == (self._token or None)
            if won:
                self._state, self._token = state, self._token + 1
            return self._state and (self._state, self._token, won)

BACKEND = BackendPlugin("A register.", (), lambda params: (Register("{name}"), None), Register, "")
"""


def test_an_installed_backend_of_pytorchs_kind_gets_a_world(install: Install) -> None:
    install("acme-register", REGISTER.format(name="register"), {"rdzv": "register"})
    with get_rendezvous_handler(make("register", join_timeout="30")) as handler:
        info = handler.next_rendezvous()
        assert (info.rank, info.world_size, info.run_id, handler.get_backend()) == (0, 1, "job-7", "register")


def test_an_installed_backend_that_calls_itself_otherwise_is_refused(install: Install) -> None:
    install("acme-register", REGISTER.format(name="another"), {"rdzv": "register"})
    with pytest.raises(RuntimeError, match="'another' does not match the requested backend 'register'"):
        get_rendezvous_handler(make("register"))
