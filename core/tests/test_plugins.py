import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rdzv_core import BackendPlugin, RendezvousBackend, plugins
from rdzv_core.errors import RendezvousError, RendezvousParameterError

Install = Callable[[str, str, Mapping[str, str]], None]

BACKEND = """
from rdzv_core.backend import BackendPlugin

BACKEND = BackendPlugin("The backend {name}.", (), None, None)
"""


class Nothing(RendezvousBackend):
    """A register in which nothing ever stands."""

    @property
    def name(self) -> str:
        return "nothing"

    def get_state(self) -> None:
        return None

    def set_state(self, state: bytes, token: Any = None) -> None:
        return None


def test_installed_backends_are_listed_with_their_packages_and_not_imported(install: Install) -> None:
    install("acme-one", "raise RuntimeError('imported')", {"rdzv": "one"})
    install("acme-two", "raise RuntimeError('imported')", {"rdzv": "two"})
    found = plugins.installed_backends()
    assert {name: found[name].name for name in ("one", "two")} == {"one": "acme-one", "two": "acme-two"}
    assert found["one"].version == "1.0"
    assert list(found) == sorted(found)


def test_choosing_a_backend_imports_no_other(install: Install) -> None:
    install("acme-one", BACKEND.format(name="one"), {"rdzv": "one"})
    install("acme-two", BACKEND.format(name="two"), {"rdzv": "two"})
    plugin = plugins.load_backend_plugin("one")
    assert plugin.summary == "The backend one."
    assert "acme_one" in sys.modules
    assert "acme_two" not in sys.modules
    assert plugins.load_backend_plugin("two").summary == "The backend two."
    assert plugins.load_backend_plugin("one") is plugin


def test_a_backend_may_be_registered_by_hand(install: Install) -> None:
    install("acme-one", "raise RuntimeError('imported')", {"rdzv": "one"})
    mine = BackendPlugin("Mine.", (), lambda params: (Nothing(), None), Nothing)
    plugins.registered_backends["one"] = mine
    assert plugins.load_backend_plugin("one") is mine


@pytest.mark.parametrize("name", ["c10d", "etcd-v2", "zookeeper", "consul"])
def test_a_known_backend_that_is_not_installed_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Others that this process has loaded do not count either.
    monkeypatch.setattr(plugins, "registered_backends", {})
    monkeypatch.setattr(plugins, "entry_points", lambda **_: ())
    with pytest.raises(
        RendezvousParameterError, match=rf"^The rendezvous backend '{name}' is not registered: "
    ) as caught:
        plugins.load_backend_plugin(name)
    assert f"`pip install rdzv-{name}`" in str(caught.value)
    assert "Installed: none." in str(caught.value)


def test_an_unknown_backend_gets_the_nearest_name(install: Install) -> None:
    install("acme-one", BACKEND.format(name="etcd-turbo"), {"rdzv": "etcd-turbo"})
    with pytest.raises(
        RendezvousParameterError, match=r"no installed package offers it.*Installed: .*etcd-turbo"
    ) as caught:
        plugins.load_backend_plugin("etcdturbo")
    assert "Did you mean 'etcd-turbo'?" in str(caught.value)
    with pytest.raises(RendezvousParameterError, match=r"Did you mean 'zookeeper'"):
        plugins.load_backend_plugin("zoo-keeper")
    with pytest.raises(RendezvousParameterError, match=r"Install the package that brings it; .*\. Installed: "):
        plugins.load_backend_plugin("nosuch")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "AttributeError: module 'acme_one' has no attribute 'BACKEND'"),
        ("BACKEND = 5", "it leads to 5, which is no BackendPlugin"),
    ],
    ids=["missing library", "raises", "empty", "something else"],
)
def test_a_broken_backend_names_its_package_and_the_cause_every_time(source: str, cause: str, install: Install) -> None:
    install("acme-one", source, {"rdzv": "one"})
    install("acme-two", BACKEND.format(name="two"), {"rdzv": "two"})
    for _ in range(2):
        with pytest.raises(RendezvousError, match="'one' of the package 'acme-one' is broken") as caught:
            plugins.load_backend_plugin("one")
        assert cause in str(caught.value)
        assert caught.value.__cause__ is not None
    assert plugins.load_backend_plugin("two").summary == "The backend two."
