"""``rdzv doctor``: what rdzv and torchrun will find on this machine, and why they will not find the rest."""

import argparse
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

from rdzv.config import environment
from rdzv.hooks import installed_hooks
from rdzv.inspector import RunInspector
from rdzv_core.credentials import variable
from rdzv_core.endpoints import hide_login
from rdzv_core.errors import RendezvousError, RendezvousParameterError
from rdzv_core.plugins import installed_backends, load_backend_plugin
from rdzv_core.text import printable

from .agent import ExitStatus
from .common import add_service_options, as_flag, parameters
from .launch import ALONE, Launch
from .output import show
from .platforms import PLATFORMS, Found, Platform, Taken, detect, installed_platforms
from .taking import OPTIONS
from .told import for_agents
from .values import seconds

_GROUP = "torchrun.handlers"
_OURS = "rdzv_torchrun"
_ANY = "rdzv"
_TAKEN = ("c10d", "etcd", "etcd-v2", "static")
"""Names that torch keeps for backends of its own."""


@dataclass(frozen=True)
class _Finding:
    """One line of the report; `state` is ``ok``, ``none`` (not installed), ``note`` or ``BROKEN``."""

    state: str
    name: str
    about: str


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check what rdzv and torchrun will find",
        description="Check which backends, hooks and names for torchrun are installed and work, and say why others "
        "do not; and what `rdzv run` takes from the platform that has started this process. A service that is named "
        "(--backend, --endpoint or their variables) is asked whether it lets us read. "
        "The exit code is 7 if anything is broken; what is not installed is not.",
    )
    add_service_options(parser)
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="SECONDS", help="how long to try: 10 s")
    # A run that no node has: all that is asked for is whether it is there.
    parser.set_defaults(run=run, run_id="rdzv-doctor")


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    broken = False
    packages = ", ".join(_version(package) or f"no {package}" for package in ("torch", "rdzv-torchrun"))
    found = detect(os.environ, [row for row in installed_platforms() if isinstance(row, Platform)] + [*PLATFORMS])
    for title, findings in (
        (f"rdzv {version('rdzv')} on Python {platform.python_version()}", _backends()),
        (f"platform ({found.names or 'none'})", _platforms(found)),
        ("hooks", _hooks()),
        (f"torchrun --rdzv-backend ({packages})", _torchrun()),
    ):
        lines = list(findings)
        if lines:
            show(f"{title}:")
        for finding in lines:
            show(f"  {finding.state:6} {finding.name:16} {finding.about}")
        broken = broken or any(finding.state == "BROKEN" for finding in lines)
    if arguments.backend or arguments.endpoint:
        _ask(arguments)
    return ExitStatus.ERROR.value if broken else ExitStatus.DONE.value


def _ask(arguments: argparse.Namespace) -> None:
    params = parameters(arguments)
    plugin = load_backend_plugin(params.backend)
    endpoint = plugin.describe_endpoint(params.endpoint or plugin.default_endpoint or "")
    show(f"service ({', '.join(filter(None, (params.backend, printable(endpoint, 200))))}):")
    began = time.monotonic()
    with RunInspector(params) as inspector:
        inspector.status(arguments.timeout)
    show(f"  ok     answers, and lets us read, after {time.monotonic() - began:.2f} s")


def _backends() -> Iterator[_Finding]:
    installed = installed_backends()
    for name, package in installed.items():
        yield _judge(name, name, f"{package.name} {package.version}")
    if not installed:
        yield _Finding("none", "", "no backend; the embedded default comes with: pip install rdzv-sqlite")


def _platforms(found: Found) -> Iterator[_Finding]:
    """What `rdzv run` takes here from the platform, what it tells beside that, and what is ignored."""
    for row in installed_platforms():
        if isinstance(row, RendezvousError):
            yield _Finding("BROKEN", "", str(row))
    if found.platforms and os.environ.get("RDZV_PLATFORM") == "none":
        yield _Finding("note", "RDZV_PLATFORM", "is none: `rdzv run` takes nothing of what stands here")
    launch = Launch(found)
    for name, taken in launch.given().items():
        flag = f"--option {name}" if name in OPTIONS else as_flag(name)
        said = f"{_shown(taken)} (from {taken.source})"
        if before := _ours_before(name):
            yield _Finding("note", flag, f"{said} is not taken: {before} comes before it")
        else:
            yield _Finding("ok", flag, said)
    for fact, taken in found.facts.items():
        yield _Finding("ok", fact.value, f"{_shown(taken)} (from {taken.source}, {taken.platform})")
    for ignored in (*launch.ignored(), *found.ignored):
        yield _Finding("note", "ignored", f"{ignored.name}: {ignored.reason}")
    yield from _service(launch)


def _ours_before(name: str) -> str | None:
    """The variable of rdzv's that comes before what the platform gives, where it is set."""
    environ = for_agents()
    if name in OPTIONS:
        return "RDZV_OPTIONS" if name in environment(environ)[0].given["options"] else None
    names = [variable(one) for one in (("backend", "endpoint") if name in ("backend", "endpoint") else (name,))]
    return next((one for one in names if environ.get(one)), None)


def _service(launch: Launch) -> Iterator[_Finding]:
    """Where the nodes of a run meet that names no service, or why it is refused."""
    given = launch.given()
    try:
        launch.check(None)
        if launch.found.is_launched and given.keys() >= {"run_id", "nnodes"} and given["nnodes"].value not in ALONE:
            endpoint = launch.endpoint(given["run_id"].value)
            yield _Finding("ok", "without service", f"the nodes meet at {endpoint.value} (from {endpoint.source})")
    except RendezvousParameterError as error:
        yield _Finding("note", "rdzv run", str(error))


def _shown(taken: Taken) -> str:
    """What stands there, without the login that an endpoint may have."""
    if any(name.endswith("_ENDPOINT") for name in taken.names):
        return printable(hide_login(str(taken.value)))
    return printable(", ".join(taken.value) if isinstance(taken.value, tuple) else str(taken.value))


def _hooks() -> Iterator[_Finding]:
    for entry, found in installed_hooks():
        if isinstance(found, RendezvousError):
            yield _Finding("BROKEN", entry.name, str(found))
        else:
            yield _Finding("ok", entry.name, f"{_package(entry)}: {', '.join(found)}")


def _torchrun() -> Iterator[_Finding]:
    for package in ("torch", "rdzv-torchrun"):
        if not _version(package):
            yield _Finding("none", "", f"{package} is not installed: pip install {package}")
            return
    # torch takes the first of several that have one name.
    names: dict[str, EntryPoint] = {}
    for entry in entry_points(group=_GROUP):
        names.setdefault(entry.name, entry)
    for name, entry in sorted(names.items()):
        yield _judge_name(name, entry)
    yield _Finding("note", "--standalone", "torchrun takes PyTorch's own c10d then, whatever --rdzv-backend says")
    for backend in installed_backends():
        if backend not in names and f"rdzv-{backend}" not in names:
            yield _Finding("ok", _ANY, f"--rdzv-conf=plugin={backend}; its package names no '{backend}' in {_GROUP}")


def _judge_name(name: str, entry: EntryPoint) -> _Finding:
    package = entry.dist.name if entry.dist is not None else entry.value
    if name in _TAKEN:
        return _Finding("BROKEN", name, f"torch keeps this name for itself, {package} should use another")
    try:
        # As torch does.
        entry.load()()
    except Exception as error:
        return _Finding("BROKEN", name, f"{package}: {type(error).__name__}: {error}")
    if entry.module != _OURS:
        return _Finding("ok", name, f"{package}, not through rdzv")
    if name == _ANY:
        return _Finding("ok", name, "any backend: --rdzv-conf=plugin=NAME")
    backend = name if name in installed_backends() else name.removeprefix("rdzv-")
    return _judge(name, backend, f"the backend {backend}")


def _judge(name: str, backend: str, about: str) -> _Finding:
    try:
        load_backend_plugin(backend)
    except RendezvousParameterError as error:
        return _Finding("none", name, str(error).rpartition(" Installed:")[0] or str(error))
    except RendezvousError as error:
        return _Finding("BROKEN", name, str(error))
    return _Finding("ok", name, about)


def _package(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _version(package: str) -> str:
    """Its name and version; empty if it is not installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
