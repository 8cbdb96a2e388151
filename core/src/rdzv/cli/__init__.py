"""The command ``rdzv``: each subcommand is a module with ``add_parser`` and ``run``."""

import argparse
import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence

from ..agent import Outcome
from ..errors import RendezvousError
from . import backends, close, doctor, run, status
from .exits import EXIT_CODES

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="rdzv",
        description="Rendezvous for distributed jobs on any coordination service.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (run, status, close, backends, doctor):
        module.add_parser(commands)
    for command in commands.choices.values():
        command.add_argument("-v", "--verbose", action="count", default=0, help="say more; twice: say everything")
    options = parser.parse_args(arguments)
    _log(options.verbose)
    try:
        return int(options.run(options))
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except RendezvousError as error:
        print(f"rdzv: {error}", file=sys.stderr)
        return Outcome.of(error).value
    except KeyboardInterrupt:
        return 130


def _log(verbosity: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.basicConfig(level=level, format="rdzv: %(message)s", stream=sys.stderr)
    # Python shows these to whoever runs a program of their own, and hides them otherwise.
    warnings.filterwarnings("default", category=DeprecationWarning, module="rdzv")
