"""The options that every subcommand about a run has."""

import argparse
import contextlib
import getpass
import logging
import math
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from rdzv.config import Layer, environment, merge
from rdzv.settings import ROUNDS_KEPT
from rdzv_core.backend import BackendPlugin, KeyValueBackend
from rdzv_core.credentials import file_option, variable
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.near import near_name
from rdzv_core.options import secret_names
from rdzv_core.parameters import ARGUMENTS, SHORT_NAMES, RendezvousParameters
from rdzv_core.plugins import installed_backends, load_backend_plugin
from rdzv_core.text import printable

from .launch import HOSTED, Launch
from .platforms import Found

MOST: Final = 999_999_999
"""The highest number that the command line takes."""

_MOST_SECONDS: Final = 1e9
"""The longest time that the command line takes: locks and sockets overflow somewhere above this."""

_DEFAULT: Final = "sqlite"
"""The backend of a command that names none, wherever it is installed."""

RUN_GROUP: Final = "the run"
"""The group of the help that has the options of a run."""

AUTO: Final = "auto"
"""The value of an option that a platform decides."""

_UNHANDLED: Final = (signal.SIGKILL, signal.SIGSTOP)
"""The signals that no program can handle."""

_MOST_EXIT_CODE: Final = 255
"""The highest exit code that a shell sees."""

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
        type=_either(AUTO, "none"),
        metavar="auto|none",
        help="whether to take what no option says from the scheduler or launcher around this process, see `rdzv "
        "doctor` (default: auto)",
    )
    group.add_argument(
        "--array",
        type=_either("sweep", "job"),
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


def _either(one: str, other: str) -> Callable[[str], str]:
    """A choice, for argparse, which does not compare a variable with the choices."""

    def read(text: str) -> str:
        if text not in (one, other):
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is neither {one} nor {other}")
        return text

    return read


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
    if not arguments.backend and not arguments.endpoint and "nnodes" in given and given["nnodes"].value != "1":
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


def seconds(text: str) -> float:
    """A number of seconds, for argparse."""
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no number of seconds, such as 2.5") from error
    if not 0 <= number <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not from 0 to {_MOST_SECONDS:.0f} seconds")
    return number


def some_seconds(text: str) -> float:
    """A number of seconds above zero, for argparse."""
    if (number := seconds(text)) == 0:
        raise argparse.ArgumentTypeError(
            f"'{printable(text)}' is no time at all; give a number of seconds, such as 2.5"
        )
    return number


def drain_seconds(text: str) -> float | str:
    """The time of a drain, for argparse, or `AUTO`, which the platform decides."""
    if text == AUTO:
        return AUTO
    try:
        return some_seconds(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {AUTO}") from error


def signal_number(text: str) -> int:
    """The number of a signal that a program can handle, for argparse; it is given by its name."""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    known = {signal_name(number): number for number in signal.valid_signals() - {*_UNHANDLED}}
    if name in known:
        return known[name]
    error = f"'{printable(text)}' is no signal that a program can handle"
    if name in map(signal_name, _UNHANDLED):
        raise argparse.ArgumentTypeError(f"{error}: the system ends or stops it then; give another, such as SIGUSR1")
    near = next((one for one, number in known.items() if text == str(number)), None) or near_name(name, known)
    raise argparse.ArgumentTypeError(f"{error}, such as SIGUSR1{f'; did you mean {near}?' if near else ''}")


def signal_name(number: int) -> str:
    """The name of a signal; that of a real-time one says which it is, as in ``SIGRTMIN+6``."""
    first = getattr(signal, "SIGRTMIN", math.inf)
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"SIGRTMIN+{number - first}" if number > first else str(number)


def count(text: str) -> int:
    """How often, for argparse."""
    if not is_count(text):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no whole number from 0 to {MOST}")
    return int(text)


def rounds(text: str) -> int:
    """A number of rounds whose failures are kept, for argparse."""
    if not is_count(text) or not 1 <= int(text) <= ROUNDS_KEPT:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no number of rounds from 1 to {ROUNDS_KEPT}")
    return int(text)


def exit_codes(text: str) -> tuple[int, ...]:
    """Exit codes, for argparse."""
    codes = [part.strip() for part in text.split(",")]
    if wrong := [code for code in codes if not is_count(code) or not 1 <= int(code) <= _MOST_EXIT_CODE]:
        raise argparse.ArgumentTypeError(
            f"'{printable(wrong[0])}' is no exit code from 1 to {_MOST_EXIT_CODE}; several stand as in 5,8"
        )
    return tuple(map(int, codes))


def is_count(text: str) -> bool:
    """Whether this is a number from 0 to `MOST` in digits; Python reads no number that has thousands of them."""
    return re.fullmatch(r"[0-9]{1,9}", text) is not None


def user() -> str:
    """The name of the user who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user need not have a name.
        return f"user {os.getuid()}"
