"""``rdzv status``: what a run is doing."""

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime

from rdzv.inspector import RunInspector, Status
from rdzv_core.text import printable

from .agent import ExitStatus
from .common import add_run_options, parameters
from .log import moment
from .output import show
from .values import seconds


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "status",
        help="show what a run is doing",
        description="Show a run's phase, its members, who is missing and who leads. Changes nothing. If nothing "
        f"is known of the run, the exit code is {ExitStatus.UNKNOWN.value}.",
    )
    add_run_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object (with --watch: one a line)")
    parser.add_argument(
        "--watch", action="store_true", help="show it again at every change, with the time, until Ctrl-C"
    )
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="SECONDS", help="how long to try: 10 s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the status, once or at every change."""
    with RunInspector(parameters(arguments)) as inspector:
        before = None
        while True:
            status = inspector.status(arguments.timeout)
            if status != before:
                text = _json(status) if arguments.json else _text(status)
                if arguments.watch and not arguments.json:
                    gap = "\n" if before else ""
                    text = f"{gap}{moment()} {text}"
                show(text)
                before = status
            if not arguments.watch:
                return _exit_status(status).value
            inspector.wait(5.0)


def _exit_status(status: Status) -> ExitStatus:
    if status.phase != "unknown":
        return ExitStatus.DONE
    return ExitStatus.ERROR if status.unreadable else ExitStatus.UNKNOWN


def _json(status: Status) -> str:
    # For people: no process compares it with its own clock.
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, **asdict(status)})


def _text(status: Status) -> str:
    lines = [f"run {printable(status.run_id)}: {status.phase}, attempt {status.attempt}, round {status.round}"]
    if status.closed_reason is not None:
        lines.append(f"  closed by {status.closed_by}: {status.closed_reason}")
    if status.phase == "unknown" and not status.unreadable:
        lines.append(
            "  no node is here: none has come yet, all that came went before they had a world, or its id is another"
        )
    lines.append(f"  leader: {status.leader or 'none'}")
    if status.min_nodes:
        here = sum(node.left is None for node in status.nodes)
        lines.append(f"  nodes: {here} here; {status.takes}")
    for node in status.nodes:
        rank = "      -" if node.rank is None else f"rank {node.rank:2}"
        drains = f", {node.drains}" if node.drains else ""
        version = f"rdzv {node.version or 'of unknown version'}"
        lines.append(f"  {rank}  {node.id}  {node.address}  {version}  {node.doing}{drains}")
    lines += [f"  rank {node.rank:2}  {node.id}  {node.doing}" for node in status.missing]
    lines += [f"  expected, and not here: {status.absent}"] if status.absent else []
    lines += [f"  not readable: {record}" for record in status.unreadable]
    lines += [f"  {failure}" for failure in status.failed_first]
    lines += [f"  quarantined: {quarantine}" for quarantine in status.quarantines]
    return "\n".join(printable(line, most=500) for line in lines)
