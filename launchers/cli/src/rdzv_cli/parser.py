"""Argument parsers that say what was wrong, with the nearest right name, and where the usage is to be found."""

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from rdzv.settings import HANDLER_OPTIONS
from rdzv_core.near import near_name
from rdzv_core.text import printable

from .agent import ExitStatus
from .common import as_flag
from .completion import is_asked
from .output import show
from .torchrun import RENAMED

_AS_FLAGS: Final = {
    as_flag(option.name): f"--option {option.name}=VALUE"
    for option in HANDLER_OPTIONS
    # It has the name of a flag of torchrun's, which means another.
    if option.name != "timeout"
}
"""How the options of every backend are given, by the flags that a user may take them for."""

_EXAMPLE: Final = "as in: rdzv run ... -- python train.py"


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse passes over what cannot be written.
        if file is sys.stdout:
            show(message.removesuffix("\n"))
        else:
            super()._print_message(message, file)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse takes the value of --role=-- for a separator, and gives an empty list in its place.
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            return self._get_value(action, "--")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """End with an error: the usage, which argparse puts before it, would hide it, once for each node of a job."""
        self.exit(ExitStatus.UNUSABLE.value, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def refuse(self, name: str, hint: str = "", others: Mapping[str, str] | None = None) -> None:
        """End with an error if this is an option that this parser does not have.

        Args:
            name: What may be one.
            hint: Follows if no option has a similar name: it may be one of another parser.
            others: What else may have been meant, and how that is given.
        """
        own = {option: option for option in self._option_string_actions if option.startswith("--")}
        known_here = any(option.startswith(name) for option in own) if self.allow_abbrev else name in own
        if name.startswith("--") and not known_here:
            known = {**(others or {}), **own}
            near = next((option for option in own if option.startswith(name)), None) or near_name(name, known)
            self.error(f"there is no option {name}{f'; did you mean {known[near]}?' if near else f'.{hint}'}")


class RootParser(_Parser):
    """The parser of ``rdzv`` itself.

    Attributes:
        commands: The names of its subcommands.
    """

    commands: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse a command that does not exist in fewer words than argparse."""
        if is_asked():
            return super().parse_known_args(args, namespace)
        given = [str(item) for item in (sys.argv[1:] if args is None else args)]
        for name in itertools.takewhile(lambda item: item.startswith("-"), given):
            self.refuse(name.partition("=")[0], " Options of a command come after it.")
        command = next((item for item in given if not item.startswith("-")), None)
        every = f"{', '.join(self.commands[:-1])} or {self.commands[-1]}"
        if not given:
            self.error(f"give a command: {every}.")
        if command is not None and command not in self.commands:
            near = near_name(command, self.commands)
            self.error(
                f"there is no command '{printable(command)}'; {f'did you mean {near}?' if near else f'give {every}.'}"
            )
        return super().parse_known_args(given, namespace)


class CommandParser(_Parser):
    """The parser of one subcommand."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is unknown here: argparse first asks for what is missing, then points to the help of ``rdzv``."""
        if is_asked():
            return super().parse_known_args(args, namespace)
        given = [str(item) for item in args or ()]
        if any(action.dest == "program" for action in self._actions):
            return self._parse_with_program(given, namespace)
        for item in itertools.takewhile(lambda item: item != "--", given):
            self.refuse(item.partition("=")[0])
        parsed, more = super().parse_known_args(args, namespace)
        if more:
            self.error(f"unrecognized arguments: {' '.join(more)}")
        return parsed, more

    def _parse_with_program(self, given: Sequence[str], namespace: Any) -> Any:
        # argparse would take a separator out of the program's own arguments; which one depends on Python's version.
        before = list(itertools.takewhile(lambda item: item != "--", given))
        behind = given[len(before) :]
        parsed, more = super().parse_known_args([self._spelled(item) for item in before], namespace)
        for item in more:
            self.refuse(item.partition("=")[0], " Options of CMD come after it.", _AS_FLAGS)
        if more:
            hint = "" if behind or parsed.program else " Write -- first."
            self.error(f"unrecognized arguments: {' '.join(more)}{hint}")
        if parsed.program is not None:
            # To the letter: as they were before options were spelled as here.
            arguments = [*before[len(before) - len(parsed.arguments) :], *behind]
            self._take_as_torchrun(parsed, arguments)
        elif len(behind) > 1:
            _, parsed.program, *parsed.arguments = behind
            parsed.as_torchrun = parsed.is_file = False
        else:
            self.error(f"give the program to start, {_EXAMPLE}")
        return parsed, more

    def _spelled(self, item: str) -> str:
        """An option as it is spelled here: with underscores, as many write torchrun's, it is the same."""
        flag, equals, value = item.partition("=")
        named = RENAMED.get(hyphened := flag.replace("_", "-"), hyphened)
        return f"{named}{equals}{value}" if named in self._option_string_actions else item

    def _take_as_torchrun(self, parsed: argparse.Namespace, arguments: list[str]) -> None:
        """Have the program be what torchrun would start: without a separator before it, it is a file for Python."""
        parsed.as_torchrun, parsed.is_file = True, not parsed.module and not parsed.no_python
        # torchrun takes a separator away that stands right behind it.
        parsed.arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
        if parsed.is_file and not os.path.exists(parsed.program):
            self.error(
                f"there is no file '{printable(parsed.program)}' for Python; another program goes after --, {_EXAMPLE}"
            )
