"""The options that every subcommand about a run has."""

import argparse
import os
from typing import Any

from ..errors import RendezvousParameterError
from ..parameters import RendezvousParameters, options_of

__all__ = ["add_run_options", "count", "parameters", "seconds"]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which run on which service."""
    parser.add_argument(
        "--backend",
        default=os.environ.get("RDZV_BACKEND", "sqlite"),
        metavar="NAME",
        help="see `rdzv backends` (default: RDZV_BACKEND, else sqlite)",
    )
    parser.add_argument(
        "--endpoint",
        default=os.environ.get("RDZV_ENDPOINT", ""),
        metavar="ADDRESS",
        help="where the service is: HOST:PORT[,HOST:PORT...], or a file (default: RDZV_ENDPOINT)",
    )
    run_id = os.environ.get("RDZV_RUN_ID")
    parser.add_argument(
        "--run-id",
        default=run_id,
        required=run_id is None,
        metavar="ID",
        help="the job that the nodes belong to (default: RDZV_RUN_ID)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the core or the backend, see `rdzv backends NAME`; may be repeated (default: those in "
        "RDZV_OPTIONS)",
    )


def parameters(
    arguments: argparse.Namespace, min_nodes: int = 1, max_nodes: int = 1, **options: Any
) -> RendezvousParameters:
    """The parameters that the command line describes, and the environment where it says nothing.

    Raises:
        RendezvousParameterError: An ``--option`` is not of the form ``NAME=VALUE``, or RDZV_OPTIONS cannot be read.
    """
    options = options_of(os.environ) | options
    for item in arguments.option:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise RendezvousParameterError(f"--option takes NAME=VALUE, such as join_timeout=60, not {item!r}.")
        options[name] = value
    return RendezvousParameters(
        arguments.backend,
        arguments.endpoint,
        arguments.run_id,
        min_nodes,
        max_nodes,
        getattr(arguments, "local_addr", None),
        **options,
    )


def seconds(text: str) -> float:
    """A number of seconds, for argparse."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return number


def count(text: str) -> int:
    """How often, for argparse."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below zero")
    return number
