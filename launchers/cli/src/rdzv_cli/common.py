"""The options that every subcommand about a run has, and the parameters that they are."""

import argparse
import getpass
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from rdzv.config import Layer, environment, merge
from rdzv_core.backend import BackendPlugin, KeyValueBackend
from rdzv_core.credentials import file_option, variable
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import secret_names
from rdzv_core.parameters import ARGUMENTS, SHORT_NAMES, RendezvousParameters
from rdzv_core.plugins import installed_backends, load_backend_plugin

from .launch import ALONE, HOSTED, Launch
from .platforms import Found
from .values import AUTO, one_of

_DEFAULT: Final = "sqlite"
"""The backend of a command that names none, wherever it is installed."""

RUN_GROUP: Final = "the run"
"""The group of the help that has the options of a run."""

logger = logging.getLogger(__name__)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which run on which service. A variable that is empty counts as not given."""
    _add_place(parser, os.environ)
    _add_run_id(parser, os.environ)
    _add_option(parser)
    parser.set_defaults(fail=parser.error)


def add_node_options(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Add those that say in which run a node takes part, and what is taken from its platform; returns their group.

    What no flag gives is None: it may have another source.
    """
    group = parser.add_argument_group(RUN_GROUP)
    _add_place(group, {})
    _add_run_id(group, {})
    _add_option(group)
    group.add_argument(
        "--nnodes",
        metavar="MIN:MAX",
        help="how many nodes a world has, as 2:4 or 4 (default: RDZV_NNODES, else what the platform tells)",
    )
    group.add_argument(
        "--standalone",
        action="store_true",
        default=None,
        help="this machine alone, as torchrun's: --nnodes 1, and a run id that no other run has, unless one is given",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file whose keys are these options, for what no flag and no variable gives (default: RDZV_CONFIG)",
    )
    group.add_argument(
        "--platform",
        type=one_of(AUTO, "none"),
        metavar="auto|none",
        help="whether to take what no option says from the scheduler or launcher around this process, see `rdzv "
        "doctor` (default: auto)",
    )
    group.add_argument(
        "--array",
        type=one_of("sweep", "job"),
        metavar="sweep|job",
        help="what the elements of a job array are: a sweep, in which each is a run, or the nodes of one job (default: "
        "sweep)",
    )
    parser.set_defaults(fail=parser.error)
    return {RUN_GROUP: group}


def add_service_options(parser: argparse.ArgumentParser) -> None:
    """Add those that say which service, as `add_run_options`."""
    _add_place(parser, os.environ)
    _add_option(parser)


def _add_place(parser: "argparse._ActionsContainer", environ: Mapping[str, str]) -> None:
    parser.add_argument(
        "--backend",
        default=environ.get("RDZV_BACKEND") or None,
        metavar="NAME",
        help="see `rdzv backends` (default: RDZV_BACKEND, else the only one installed, else sqlite)",
    )
    parser.add_argument(
        "--endpoint",
        default=environ.get("RDZV_ENDPOINT"),
        metavar="ADDRESS",
        help="where the service is: HOST:PORT[,HOST:PORT...], or a file (default: RDZV_ENDPOINT)",
    )


def _add_run_id(parser: "argparse._ActionsContainer", environ: Mapping[str, str]) -> None:
    parser.add_argument(
        "--run-id",
        default=environ.get("RDZV_RUN_ID") or None,
        metavar="ID",
        help="the job that the nodes belong to (default: RDZV_RUN_ID, else what the platform tells)",
    )


def _add_option(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of rdzv or the backend, see `rdzv backends NAME`; may be repeated (default: those in "
        "RDZV_OPTIONS)",
    )


def parameters(
    arguments: argparse.Namespace,
    min_nodes: int = 1,
    max_nodes: int = 1,
    environ: Mapping[str, str] = os.environ,
    below: Sequence[Layer] = (),
    **options: Any,
) -> RendezvousParameters:
    """The parameters that the command line describes, and the environment where it says nothing.

    Args:
        arguments: The command line; gets the run of the platform, if it names none.
        min_nodes: The smallest world.
        max_nodes: The largest.
        environ: The environment.
        below: What counts where neither the command line nor the environment gives it.
        options: More options, of flags.

    Raises:
        RendezvousParameterError: An ``--option`` is not of the form ``NAME=VALUE`` or names no option, RDZV_OPTIONS
            cannot be read, or no other process could find the service.
    """
    if arguments.run_id is None:
        _take_run(arguments)
    given = _options_given(arguments.option)
    if twice := [name for name, value in options.items() if str(given.get(name, value)) != str(value)]:
        name = twice[0]
        raise RendezvousParameterError(
            f"--option {name}={given[name]} and {as_flag(name)} {options[name]} contradict each other: leave one out."
        )
    backend = arguments.backend or _default_backend(max_nodes)
    plugin = load_backend_plugin(backend)
    secrets = secret_names(plugin.options)
    _warn_of_secrets(given, secrets)
    beside = {
        "backend": backend,
        "endpoint": arguments.endpoint or "",
        "run_id": arguments.run_id,
        "min_nodes": min_nodes,
        "max_nodes": max_nodes,
    }
    if address := getattr(arguments, "local_addr", None):
        beside["local_addr"] = address
    given_here = {**beside, "options": given | options}
    layers = (Layer("The command line", given_here, as_flag), *environment(environ), *below)
    for layer in layers:
        _check_places(layer.given.get("options", {}), arguments)
    params = merge(*layers, secrets=secrets)
    plugin.check_shared(params)
    return params


def _options_given(items: Iterable[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for position, item in enumerate(items, start=1):
        name, equals, value = item.partition("=")
        if not name or not equals:
            # What stands there may be a password.
            raise RendezvousParameterError(
                f"--option takes NAME=VALUE, such as join_timeout=60; what --option number {position} gives is not of "
                "that form."
            )
        if given.setdefault(name, value) != value:
            raise RendezvousParameterError(f"--option gives {name} twice, with different values: leave one out.")
    return given


def _take_run(arguments: argparse.Namespace) -> None:
    """Have a command that is called in a job, as by the script of a scheduler, be about the run of that job."""
    launch = Launch.here(os.environ) if os.environ.get("RDZV_PLATFORM") != "none" else Launch(Found())
    given = launch.given()
    if "run_id" not in given:
        arguments.fail(f"the following arguments are required: {with_variable('run_id')}")
    arguments.run_id = given["run_id"].value
    if not arguments.backend and not arguments.endpoint and "nnodes" in given and given["nnodes"].value not in ALONE:
        arguments.backend, arguments.endpoint = HOSTED, launch.endpoint(arguments.run_id).value


def _default_backend(nodes: int) -> str:
    """The backend of a command that names none.

    Args:
        nodes: How many may take part. A backend that serves one machine is not chosen for several unless it is
            the default: of that, the first line of a node says so.

    Raises:
        RendezvousParameterError: None is the default.
    """
    installed = list(installed_backends())
    if not installed or _DEFAULT in installed:
        return _DEFAULT
    only, *more = installed
    if more:
        raise RendezvousParameterError(
            f"Several backends are installed ({', '.join(installed)}): say which one by --backend, or RDZV_BACKEND."
        )
    if nodes > 1 and _serves_one_machine(load_backend_plugin(only)):
        raise RendezvousParameterError(
            f"The only backend that is installed, {only}, serves the processes of one machine, and {nodes} nodes may "
            f"come. If all of them are there, give --backend {only}; else install another."
        )
    return only


def _serves_one_machine(plugin: BackendPlugin) -> bool:
    """Whether only the processes of one machine can reach the service: its nodes are at the address of the contract."""
    kind = plugin.backend_type
    return issubclass(kind, KeyValueBackend) and kind.local_address is KeyValueBackend.local_address


def as_flag(argument: str) -> str:
    """The flag of an argument: --run-id for run_id."""
    return f"--{argument.replace('_', '-')}"


def with_variable(argument: str) -> str:
    """The flag of an argument, and the variable that gives it, too."""
    return f"{as_flag(argument)} (or {variable(argument)})"


def _check_places(options: Collection[str], arguments: argparse.Namespace) -> None:
    if misplaced := next((name for name in (*ARGUMENTS, *SHORT_NAMES) if name in options), None):
        flag = "nnodes" if misplaced in SHORT_NAMES or misplaced.endswith("_nodes") else misplaced
        way = f"give {as_flag(flag)}" if hasattr(arguments, flag) else "leave it out"
        raise RendezvousParameterError(f"'{misplaced}' belongs neither in --option nor in RDZV_OPTIONS: {way}.")


def _warn_of_secrets(given: Collection[str], secrets: Iterable[str]) -> None:
    for name in secrets:
        if name in given:
            logger.warning(
                "every user of this machine can read the %s in the list of processes; give --option %s=FILE or the "
                "variable %s instead.",
                name,
                file_option(name),
                variable(name),
            )


def user() -> str:
    """The name of the user who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user need not have a name.
        return f"user {os.getuid()}"
