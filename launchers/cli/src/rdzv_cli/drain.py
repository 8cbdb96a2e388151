"""``rdzv drain``: have a node leave its run, after a while in which the others save their work."""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Final

from rdzv.inspector import RunInspector
from rdzv_core.errors import RendezvousTimeoutError
from rdzv_core.text import listed, printable
from rdzv_core.threads import in_thread

from .common import add_run_options, parameters
from .log import clear, flush
from .output import show
from .values import seconds
from .wait_line import WaitLine

_PATIENCE: Final = 60.0
"""Seconds that a node may take to go once its time is over: its program has its grace period then."""

_POLL: Final = 0.05
"""Seconds between two looks at whether they have."""


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
    parser.add_argument(
        "--wait",
        nargs="?",
        type=seconds,
        const=_PATIENCE,
        metavar="SECONDS",
        help="end only when the node has left, as a preStop hook must; with exit code 3 if it is still here so long "
        f"after its time was over ({_PATIENCE:g} s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Announce it, and wait if asked to."""
    with RunInspector(parameters(arguments)) as inspector:
        run_id = printable(arguments.run_id)
        drains = inspector.drain(arguments.node, arguments.seconds, arguments.reason, arguments.timeout)
        for drain in drains:
            is_known = (drain.seconds, drain.reason) != (arguments.seconds, arguments.reason)
            since = f" of an earlier announcement, which stands: {printable(drain.reason)}" if is_known else "."
            show(f"Node '{printable(drain.node)}' leaves the run '{run_id}' within {drain.seconds:g} s{since}")
        nodes = [drain.node for drain in drains]
        if arguments.wait is None:
            return 0
        if still_here := _await_departure(inspector, nodes, arguments.seconds + arguments.wait):
            raise RendezvousTimeoutError(
                f"Still in the run '{run_id}' {arguments.wait:g} s after their time was over: {listed(still_here)}. "
                "Look at what their programs do, or give a longer --wait."
            )
        show(f"{'It has' if len(nodes) == 1 else 'They have'} left.")
    return 0


def _await_departure(inspector: RunInspector, nodes: Sequence[str], timeout: float) -> Sequence[str]:
    """Wait for nodes to leave, and show meanwhile which are still here; returns those that are in the end."""
    here, line, began = nodes, WaitLine(), time.monotonic()

    def note(still_here: Sequence[str]) -> None:
        nonlocal here
        here = still_here

    def in_words(waited: float) -> str:
        return f"waiting for {listed(here)} to leave, {waited:.0f} s of {timeout:.0f} s"

    asked = in_thread(lambda: inspector.await_departure(nodes, timeout, note), "rdzv-drain")
    while not wait([asked], _POLL).done:
        line.waits(time.monotonic() - began, in_words)
    if line.is_in_place:
        clear()
        flush()
    return asked.result()
