"""Argument parsers that say what was wrong, with the nearest right name, and where the usage is to be found."""

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from rdzv.settings import HANDLER_OPTIONS
from rdzv_core.near import near_name
from rdzv_core.text import printable

from .agent import ExitStatus
from .output import show
from .torchrun import IN_PLACE_OF

_AS_FLAGS: Final = {
    f"--{option.name.replace('_', '-')}": f"--option {option.name}=VALUE"
    for option in HANDLER_OPTIONS
    # It has the name of a flag of torchrun's, which means another.
    if option.name != "timeout"
}
"""How the options of every backend are given, by the flags that a user may take them for."""


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse passes over what cannot be written.
        if file is sys.stdout:
            show(message.removesuffix("\n"))
        else:
            super()._print_message(message, file)

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
        if name.startswith("--") and not any(option.startswith(name) for option in own):
            known = {**(others or {}), **own}
            near = near_name(name, known)
            self.error(f"there is no option {name}{f'; did you mean {known[near]}?' if near else f'.{hint}'}")


class RootParser(_Parser):
    """The parser of ``rdzv`` itself.

    Attributes:
        commands: The names of its subcommands.
    """

    commands: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse a command that does not exist in fewer words than argparse."""
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
        given = [str(item) for item in args or ()]
        starts = any(action.dest == "program" for action in self._actions)
        before = list(itertools.takewhile(lambda item: item != "--", given))
        program = given[len(before) :]
        ours = [self._hyphened(item) for item in before]
        for item in ours:
            flag = item.partition("=")[0]
            if starts and (answer := IN_PLACE_OF.get(flag.replace("_", "-"))):
                self.error(f"there is no option {flag}; {answer}.")
            self.refuse(flag, " Options of CMD come after --." if starts else "", _AS_FLAGS if starts else None)
        # argparse would take a separator out of the program's own arguments; which one depends on Python's version.
        parsed, more = super().parse_known_args(ours if starts else args, namespace)
        if more:
            hint = " Write -- first." if starts and not program else ""
            self.error(f"unrecognized arguments: {' '.join(more)}{hint}")
        if starts:
            self._take_program(parsed, program[1:])
        return parsed, more

    def _hyphened(self, item: str) -> str:
        """An option as it is named here: with underscores, as many write torchrun's, it is the same."""
        flag, equals, value = item.partition("=")
        named = flag.replace("_", "-")
        return f"{named}{equals}{value}" if named in self._option_string_actions else item

    def _take_program(self, parsed: argparse.Namespace, behind: Sequence[str]) -> None:
        """Have the program and its arguments be what stands behind the separator, if anything does."""
        example = "as in: rdzv run ... -- python train.py"
        if behind and parsed.program is not None:
            self.error(f"'{printable(parsed.program)}' stands before --; all of CMD goes after it, {example}")
        if behind:
            parsed.program, *parsed.arguments = behind
        if parsed.program is None:
            self.error(f"give the program to start after --, {example}")
