"""``rdzv pardon``: lift the quarantine of a node."""

import argparse

from rdzv.inspector import RunInspector
from rdzv_core.text import printable

from .common import add_run_options, parameters, user
from .output import show
from .values import seconds


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "pardon",
        help="lift the quarantine of a node",
        description="Lift the quarantine of a node: it takes part again at once, and what it has failed so far does "
        "not count any more.",
    )
    add_run_options(parser)
    parser.add_argument("--node", required=True, metavar="NODE", help="its name, as `rdzv status` shows it")
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="SECONDS", help="how long to try: 10 s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Lift it."""
    with RunInspector(parameters(arguments)) as inspector:
        inspector.pardon(arguments.node, f"the operator ({user()})", arguments.timeout)
    show(f"Node '{printable(arguments.node)}' is pardoned.")
    return 0
