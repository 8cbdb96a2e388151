"""The command ``rdzv``: each subcommand is a module with ``add_parser`` and ``run``."""

import argparse
from collections.abc import Sequence
from importlib.metadata import version

from rdzv_core.errors import RendezvousError

from . import backends, close, closed_streams, completion, doctor, drain, log, output, pardon, run, status
from .agent import ExitStatus, ignore_from_now_on
from .agent.shortages import explained
from .exits import EXIT_CODES
from .parser import CommandParser, RootParser


def make_parser() -> RootParser:
    """The parser of the command line."""
    parser = RootParser(
        prog="rdzv",
        description="Rendezvous for distributed jobs on any coordination service.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rdzv {version('rdzv')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    for module in (run, status, close, drain, pardon, backends, doctor, completion):
        module.add_parser(commands)
    parser.commands = tuple(commands.choices)
    for command in commands.choices.values():
        command.add_argument("-v", "--verbose", action="count", help="say more; twice: say everything")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Without arguments, they are those of this process."""
    try:
        return _run(arguments)
    finally:
        log.end()


def be_process() -> int:
    """As `main`, for this process, which ends then: no signal of a scheduler changes its exit code any more."""
    try:
        return _run(None)
    finally:
        ignore_from_now_on()
        log.end()


def _run(arguments: Sequence[str] | None) -> int:
    closed_streams.fill()
    parser = make_parser()
    completion.complete(parser)
    output.begin()
    try:
        options = parser.parse_args(arguments)
        log.begin(options.verbose or 0)
        return int(options.run(options))
    except output.OutputError as error:
        return output.fail(error)
    except RendezvousError as error:
        log.say(str(error))
        return ExitStatus.of(error).value
    except OSError as error:
        log.say(f"rdzv cannot go on: {explained(error)}")
        return ExitStatus.ERROR.value
    except KeyboardInterrupt:
        return 130
