"""``rdzv completion``: what a shell sources to complete this command; argcomplete does the work."""

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from rdzv.settings import HANDLER_OPTIONS
from rdzv_core.plugins import installed_backends

from .agent import ExitStatus
from .log import say
from .output import show
from .values import one_of

_SHELLS: Final = ("bash", "zsh", "fish")
_IS_ASKED: Final = "_ARGCOMPLETE"
"""Is set where a shell asks what a line may go on with."""

_PATHS: Final = ("ADDRESS", "ARG", "CHECK", "CMD", "FILE", "FOLDER")
"""Stand for what may be a file."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "completion",
        help="print what completes this command in a shell",
        description="Print what has a shell complete this command: its options, and the values that are known. It "
        "needs argcomplete: pip install 'rdzv-cli[completion]'.",
    )
    parser.add_argument("shell", type=one_of(*_SHELLS), metavar="|".join(_SHELLS), help="the shell that sources it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    if find_spec("argcomplete") is None:
        say("argcomplete is not installed, which completes this command: pip install 'rdzv-cli[completion]'")
        return ExitStatus.UNUSABLE.value
    from argcomplete.shell_integration import shellcode

    show(shellcode(["rdzv"], shell=arguments.shell))
    return 0


def is_asked() -> bool:
    """Whether a shell asks what a line may go on with."""
    return _IS_ASKED in os.environ and find_spec("argcomplete") is not None


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell, and end; return if none asks."""
    if not is_asked():
        return
    import argcomplete

    for action in _actions(parser):
        if (known := _known(action)) is not None:
            vars(action)["completer"] = partial(_offer, known)
        elif str(action.metavar) in _PATHS:
            vars(action)["completer"] = argcomplete.completers.FilesCompleter()
    argcomplete.autocomplete(parser, default_completer=argcomplete.completers.SuppressCompleter())


def _offer(known: Sequence[str], **_: Any) -> Sequence[str]:
    """What argcomplete calls with what it knows of the line; it takes of this what the word begins with."""
    return known


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _known(action: argparse.Action) -> Sequence[str] | None:
    """The values of an option that are known; None: they are not."""
    by_name: dict[str, Any] = {
        "backend": installed_backends,
        "name": installed_backends,
        "option": lambda: [f"{option.name}=" for option in HANDLER_OPTIONS],
        "nproc_per_node": lambda: ("auto", "cpu", "gpu"),
    }
    if action.dest in by_name:
        return sorted(by_name[action.dest]())
    shown = str(action.metavar)
    return shown.split("|") if re.fullmatch(r"[a-z]+(\|[a-z]+)+", shown) else None
