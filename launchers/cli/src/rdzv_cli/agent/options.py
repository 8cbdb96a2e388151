"""What the user decides about the agent: each option of `rdzv run` once, as a field and as a flag."""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from rdzv_core.errors import RendezvousParameterError

from ..common import RUN_GROUP, as_flag
from ..values import count, drain_seconds, exit_codes, one_of, rounds, seconds, signal_number, some_seconds
from .checks import Check, parse_check
from .devices import processes
from .routes import NOTHING, Choice, parse_choice, parse_ranks
from .signals import ASKING, DRAIN_SIGNALS, signals_to_handle

_RUN: Final = RUN_GROUP
_NODE: Final = "this node"
_FAILURES: Final = "failures"
_LEAVING: Final = "leaving"
_CHECKS: Final = "checks"
_OUTPUT: Final = "output"
"""The groups of the help."""

JSON: Final = "json"
"""The other form of lines than text."""


def _flag(group: str, help: str, *, default: Any = None, **more: Any) -> Any:
    """A field that the flag of its name sets; the arguments are those of `add_argument`."""
    return field(default=default, metadata={"group": group, "help": help, **more})


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of one agent. The help of each says what it means."""

    nproc_per_node: int = _flag(
        _NODE,
        "processes per node (default: what the platform tells, else 1); gpu: one for each NVIDIA GPU; cpu: one for "
        "each CPU; auto: gpu if there is any, else cpu",
        type=processes,
        default=1,
        metavar="N",
    )
    max_restarts: int = _flag(
        _FAILURES,
        "how often CMD may fail on this node before it gives up (default: {default}); a new world costs none, nor "
        "does a failure that the loss of another node explains",
        type=count,
        default=0,
        metavar="N",
    )
    attempt: int | None = _flag(
        _RUN, "the scheduler's restart count (default: what the platform tells, else 0)", type=count, metavar="N"
    )
    local_addr: str | None = _flag(
        _NODE,
        "this node's address as the others reach it: itself, a host name, or the interface (eth1) or network "
        "(10.98.0.0/16) of this machine that has it (default: RDZV_LOCAL_ADDR, else the one from which it calls the "
        "service)",
        metavar="ADDRESS",
    )
    master_port: str | None = _flag(
        _NODE,
        "a port or a range, as 29500-29599, of which the first that is free becomes MASTER_PORT if this node is rank "
        "0; one for each node of a machine (default: any)",
        metavar="PORT|RANGE",
    )
    grace: float = _flag(
        _LEAVING,
        "between asking CMD to end and killing it (default: {default:g})",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
    )
    keep_detached: bool = _flag(
        _LEAVING,
        "leave alone what CMD or a check starts in sessions of its own, such as daemons that are to outlive it "
        "(default: it is ended with CMD)",
        action="store_true",
        default=False,
    )
    drain: float | None = _flag(
        _LEAVING,
        "after the first SIGTERM or SIGUSR1 stay in the world for so long, or until all are ready, so that all can "
        "save their work; auto: 100 s, and unasked 120 s before the job's end, if the platform tells that (default: "
        "go at once, as after a second one)",
        type=drain_seconds,
        metavar="SECONDS",
    )
    give_up_after: int = _flag(
        _FAILURES,
        "close the run after so many consecutive rounds, up to 10, in which CMD failed and progress() came no further "
        "than before; --max-restarts has to allow for them (default: never)",
        type=rounds,
        default=0,
        metavar="N",
    )
    hang_timeout: float | None = _flag(
        _FAILURES,
        "how long a process that has called rdzv.current().progress() may take until it calls it again; then it counts "
        "as failed (default: any time)",
        type=some_seconds,
        metavar="SECONDS",
    )
    on_drain: int = _flag(
        _LEAVING,
        "what CMD is sent when a node of its world is about to leave, such as SIGUSR1 (default: none)",
        type=signal_number,
        default=0,
        metavar="SIGNAL",
    )
    signals_to_handle: Collection[int] = _flag(
        _LEAVING,
        "the signals at which the node leaves and CMD gets its grace, as in SIGTERM,SIGINT,SIGUSR1; another one ends "
        "the agent at once, also with --drain (default: every one that asks a process to end)",
        type=signals_to_handle,
        default=ASKING,
        metavar="SIGNAL,...",
    )
    check: Sequence[Check] | None = _flag(
        _CHECKS,
        "what this node must be fit for to take part: a command line, disk:PATH:SIZE, port, port:NUMBER, gpu or "
        "host:NAME:PORT; may be repeated",
        action="append",
        type=parse_check,
        metavar="CHECK",
    )
    check_timeout: float = _flag(
        _CHECKS,
        "how long each check may take (default: {default:g})",
        type=some_seconds,
        default=60.0,
        metavar="SECONDS",
    )
    check_cooldown: float | None = _flag(
        _CHECKS,
        "after a check has failed, wait so long and try again; twice as long each time, up to 8 times as long "
        "(default: end)",
        type=some_seconds,
        metavar="SECONDS",
    )
    pass_exit_code: bool = _flag(
        _FAILURES,
        "where CMD has failed for good, end with its exit code (128+N for signal N) instead of 1",
        action="store_true",
        default=False,
    )
    ok_exit_code: Sequence[int] = _flag(
        _FAILURES,
        "exit codes, as in 5,8, that are to be 0: a scheduler repeats no node that was not needed, or has drained "
        "(default: none)",
        type=exit_codes,
        default=(),
        metavar="N,...",
    )
    log_dir: str | None = _flag(
        _OUTPUT,
        "where the files of --redirects and --tee are, as torchrun's: RUN_xxxx/attempt_ROUND/LOCAL_RANK/stdout.log and "
        "stderr.log (default: a new folder for temporary files)",
        metavar="FOLDER",
    )
    redirects: Choice = _flag(
        _OUTPUT,
        "what goes to files in the place of the console, 1: standard output, 2: standard error, 3: both, or for each "
        "local rank, as in 0:3,1:2 (default: nothing)",
        short="-r",
        type=parse_choice,
        default=NOTHING,
        metavar="STREAMS",
    )
    tee: Choice = _flag(
        _OUTPUT,
        "what goes to files and to the console, written as for --redirects (default: nothing)",
        short="-t",
        type=parse_choice,
        default=NOTHING,
        metavar="STREAMS",
    )
    local_ranks_filter: Collection[int] = _flag(
        _OUTPUT,
        "the local ranks that the console shows, as in 0,1; files have all (default: all)",
        type=parse_ranks,
        default=(),
        metavar="RANK,...",
    )
    prefix: str | None = _flag(
        _OUTPUT,
        "what stands before each line of a process on the console, with ${{round}}, ${{rank}}, ${{local_rank}}, "
        "${{group_rank}} and ${{role_name}}; empty: nothing (default: [${{round}}:${{rank}}] where there are several "
        "processes, or --tee)",
        metavar="TEMPLATE",
    )
    log_format: str = _flag(
        _OUTPUT,
        "how lines are written, also those of CMD that the console shows: text, or json, an object for each, with run, "
        "round, node and rank (default: text)",
        type=one_of("text", JSON),
        default="text",
        metavar="text|json",
    )
    role: str = _flag(
        _NODE, "what ROLE_NAME is, which a prefix may show (default: {default})", default="default", metavar="NAME"
    )
    pass_secrets: bool = _flag(
        _NODE,
        "let CMD see the passwords and tokens, too; it needs none if they are in files",
        action="store_true",
        default=False,
    )

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.drain is not None and not {*DRAIN_SIGNALS} & {*self.signals_to_handle}:
            names = " or ".join(number.name for number in DRAIN_SIGNALS)
            raise RendezvousParameterError(
                f"--drain begins at {names}, and --signals-to-handle names neither, so that they would end the agent "
                "at once: name one, or leave out --drain."
            )

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser, groups: dict[str, Any]) -> None:
        """Add a flag for each; what none gives is None, so that a variable or a platform may tell it.

        Args:
            parser: Gets them.
            groups: Those of the help that there are.
        """
        for each in fields(cls):
            flag = {**each.metadata, "help": each.metadata["help"].format(default=each.default)}
            names = [name for name in (flag.pop("short", None), as_flag(each.name)) if name]
            title = flag.pop("group")
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            groups[title].add_argument(*names, default=None, **flag)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """The options that such a parser has read."""
        given = {each.name: getattr(arguments, each.name) for each in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})
