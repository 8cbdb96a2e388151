"""An argument parser that says what was wrong, with the usage of the subcommand and the nearest right name."""

import argparse
import itertools
from typing import Any

from ..near import near_name

__all__ = ["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """The parser of one subcommand."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is unknown here: argparse first asks for what is missing, then shows the usage of ``rdzv``."""
        given = [str(item) for item in args or ()]
        for name in itertools.takewhile(lambda item: item != "--", given):
            self._refuse_unknown(name.partition("=")[0])
        parsed, more = super().parse_known_args(args, namespace)
        if more:
            self.error(f"unrecognized arguments: {' '.join(more)}{self._separator(' Write %s first.')}")
        return parsed, more

    def _refuse_unknown(self, name: str) -> None:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        if name.startswith("--") and not any(option.startswith(name) for option in known):
            near = near_name(name, known)
            hint = f"did you mean {near}?" if near else "see --help."
            self.error(f"there is no option {name}; {hint}{self._separator(' Options of CMD come after %s.')}")

    def _separator(self, hint: str) -> str:
        return hint % "--" if any(action.dest == "program" for action in self._actions) else ""
