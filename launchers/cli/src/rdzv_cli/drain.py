"""``rdzv drain``: have a node leave its run, after a while in which the others save their work."""

import argparse

from rdzv.inspector import RunInspector
from rdzv_core.text import printable

from .common import add_run_options, parameters, seconds
from .output import show


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "drain",
        help="have a node leave a run after a while",
        description="Announce that a node leaves: every member learns it at once, and can save its work. The node goes "
        "when the time is over, or as soon as all members have said that they are ready; the others go on in a new "
        "world, with a spare in its place if there is one.",
    )
    add_run_options(parser)
    parser.add_argument(
        "--node", required=True, metavar="NODE", help="its id, or its name: then every node of that name"
    )
    parser.add_argument(
        "--in", type=seconds, default=60.0, dest="seconds", metavar="SECONDS", help="how long it stays at most: 60 s"
    )
    parser.add_argument("--reason", default="no reason given", help="the reason that the nodes report")
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="SECONDS", help="how long to try: 10 s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Announce it."""
    with RunInspector(parameters(arguments)) as inspector:
        for node in inspector.drain(arguments.node, arguments.seconds, arguments.reason, arguments.timeout):
            run_id = printable(arguments.run_id)
            show(f"Node '{printable(node)}' leaves the run '{run_id}' within {arguments.seconds:g} s.")
    return 0
