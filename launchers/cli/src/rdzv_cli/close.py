"""``rdzv close``: end a run for all nodes, and remove what it left behind."""

import argparse
import time

from rdzv.inspector import RunInspector
from rdzv_core.errors import RendezvousStateError, RendezvousTimeoutError
from rdzv_core.text import listed, printable

from .common import add_run_options, parameters, user
from .output import show
from .values import seconds


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "close",
        help="end a run for all nodes",
        description="Close a run: every node in it, and every one that comes later, gets an error with the reason. "
        "A relaunch needs a higher attempt, another run id, or --purge. A run that no node has joined yet is closed, "
        "too; the command says so, since its id may be mistyped.",
    )
    add_run_options(parser)
    parser.add_argument("--reason", default="no reason given", help="the reason that the nodes report")
    parser.add_argument("--purge", action="store_true", help="also remove every key of the run, once no node is left")
    parser.add_argument("--timeout", type=seconds, default=30.0, metavar="SECONDS", help="how long to try: 30 s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Close, and purge if asked to."""
    with RunInspector(parameters(arguments)) as inspector:
        deadline = time.monotonic() + arguments.timeout
        shown_id = printable(arguments.run_id)
        try:
            was_used = _was_used(inspector, arguments.timeout)
            closed = inspector.close(f"the operator ({user()})", arguments.reason, deadline - time.monotonic())
            show(f"The run '{shown_id}' is closed: {printable(closed.reason, 500)} (by {printable(closed.by)}).")
            if not was_used:
                back = "" if arguments.purge else " `rdzv close --purge` takes this back."
                show(f"No node has left a trace under the run id '{shown_id}': is it the right one?{back}")
        except RendezvousStateError:
            # A purge removes what it cannot read.
            if not arguments.purge:
                raise
        if arguments.purge:
            left = inspector.purge(deadline - time.monotonic())
            if left:
                raise RendezvousTimeoutError(
                    f"Nothing was purged; still there after {arguments.timeout:.0f} s: {listed(left)}. "
                    "Stop these nodes and purge again."
                )
            show(f"Every key of the run '{shown_id}' is removed.")
    return 0


def _was_used(inspector: RunInspector, timeout: float) -> bool:
    """Whether a node has left a trace in the run."""
    try:
        status = inspector.status(timeout)
        return status.phase != "unknown" or bool(status.unreadable)
    except RendezvousStateError:
        # Closing needs the state alone; what else there is was written by something.
        return True
