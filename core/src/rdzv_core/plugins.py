"""The backends that are installed, and how one is found by its name.

A backend is an entry point of the group ``rdzv`` that is named like the backend and leads to a `BackendPlugin`. It is
loaded when that backend is asked for: choosing one imports nothing of another.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any, Final

from .backend import CONTRACT, BackendPlugin, RendezvousBackend
from .credentials import with_secrets
from .errors import RendezvousError, RendezvousParameterError
from .near import near_name
from .options import Option, read_options, secret_names
from .parameters import ARGUMENTS, SHORT_NAMES, RendezvousParameters

__all__ = [
    "create_backend",
    "installed_backends",
    "load_backend_plugin",
    "naming_package",
    "registered_backends",
]

_OURS: Final = frozenset({"c10d", "consul", "etcd-v2", "etcd-v3", "sqlite", "zookeeper"})
"""The backends that a package ``rdzv-<name>`` brings, so that an error can say what to install."""


registered_backends: Final[dict[str, BackendPlugin]] = {}
"""The backends that this process knows by name: the loaded ones, and what is put in by hand, which comes first."""


def installed_backends() -> dict[str, Distribution]:
    """The name of every installed backend and the package that brings it, without importing any.

    If two packages bring the same name, the one that Python finds first counts.
    """
    found: dict[str, Distribution] = {}
    for entry in entry_points(group="rdzv"):
        if entry.dist is not None:
            found.setdefault(entry.name, entry.dist)
    return dict(sorted(found.items()))


def load_backend_plugin(name: str) -> BackendPlugin:
    """The description of one backend. Imports the plugin of that name, and no other.

    Raises:
        RendezvousParameterError: There is no such backend; the message says what to install, or the
            nearest right name.
        RendezvousError: The plugin is broken, or written for another version of the contract; the message names its
            package and the cause.
    """
    if name in registered_backends:
        return registered_backends[name]
    entry = next(iter(entry_points(group="rdzv", name=name)), None)
    if entry is None:
        raise RendezvousParameterError(_explain_unknown(name))
    with naming_package(entry):
        plugin = entry.load()
        if not isinstance(plugin, BackendPlugin):
            raise TypeError(f"it leads to {plugin!r}, which is no BackendPlugin")
        if type(plugin.contract) is not int:
            raise TypeError(f"its contract is {plugin.contract!r}, and not a number such as {CONTRACT}")
    _check_contract(plugin, entry)
    return registered_backends.setdefault(name, plugin)


def create_backend(params: RendezvousParameters, others: Iterable[Option] = ()) -> tuple[RendezvousBackend, Any]:
    """Make the backend that `params` describe, and the store if it brings one, without contacting the service.

    Args:
        params: The parameters.
        others: The options that its caller understands, whatever the backend.

    Raises:
        RendezvousParameterError: The backend is unknown, needs an endpoint, or one of the options is
            neither the backend's nor among `others`.
        RendezvousError: The plugin is broken, or a library that it needs is missing.
    """
    plugin = load_backend_plugin(params.backend)
    if not isinstance(params.run_id, str) or not params.run_id:
        raise RendezvousParameterError(f"The run id must be a non-empty string, not {params.run_id!r}.")
    # Files are read once: the plugin finds the secrets themselves.
    params = with_secrets(params, secret_names(plugin.options))
    known = (*others, *plugin.options)
    read_options(params.config, known, owner=f"The backend '{params.backend}'", besides=(*ARGUMENTS, *SHORT_NAMES))
    if not params.endpoint:
        if plugin.default_endpoint is None:
            raise RendezvousParameterError(
                f"The backend '{params.backend}' needs an endpoint, such as {plugin.example_endpoint}, and none was "
                "given."
            )
        params.endpoint = plugin.default_endpoint
    try:
        return plugin.create_backend(params)
    except ImportError as error:
        raise RendezvousError(
            f"The backend '{params.backend}' misses what it needs ({error}): reinstall its package."
        ) from error


@contextmanager
def naming_package(entry: EntryPoint) -> Iterator[None]:
    """Turn whatever goes wrong inside into an error that names the package of `entry`."""
    try:
        yield
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise RendezvousError(
            f"The plugin '{entry.name}' of the package '{package}' is broken: {type(error).__name__}: {error}. "
            f"Reinstall or uninstall {package}."
        ) from error


def _check_contract(plugin: BackendPlugin, entry: EntryPoint) -> None:
    if plugin.contract == CONTRACT:
        return
    package = entry.dist.name if entry.dist is not None else entry.value
    older, newer = (package, "rdzv-core") if plugin.contract < CONTRACT else ("rdzv-core", package)
    raise RendezvousError(
        f"The backend '{entry.name}' of the package '{package}' is written for version {plugin.contract} of the "
        f"contract, and this rdzv-core has version {CONTRACT}: upgrade {older}, or install an earlier {newer}."
    )


def _explain_unknown(name: str) -> str:
    installed = installed_backends()
    if name in _OURS:
        advice = f"Install it with `pip install rdzv-{name}`."
    elif near := near_name(name, _OURS.union(installed)):
        advice = f"Did you mean '{near}'" + ("?" if near in installed else f" (`pip install rdzv-{near}`)?")
    else:
        advice = "Install the package that brings it; in Python, `register` takes one of your own."
    return (
        f"The rendezvous backend '{name}' is not registered: no installed package offers it. {advice} "
        f"Installed: {', '.join(installed) or 'none'}."
    )
