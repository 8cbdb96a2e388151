"""Where `rdzv run` takes an option from that no flag gives: its variable, else the file of ``--config``.

`RDZV_MAX_RESTARTS` is ``--max-restarts``, and so is the key ``max-restarts`` of the file, and so on.
"""

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rdzv_core.credentials import variable
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.near import near_name
from rdzv_core.text import printable

from .values import count

CONFIG: Final = "config"
"""The option that names the file; it stands in no file."""

OPTION: Final = "option"
"""The option that has options of its own; `rdzv.config` reads its variable, RDZV_OPTIONS."""

_SWITCH: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

Options = Mapping[str, argparse.Action]
"""The options that may have another source than a flag, by their names with underscores."""


def variable_of(name: str) -> str:
    """The variable of an option: that of ``--option`` is older than the rest, and has several."""
    return variable("options" if name == OPTION else name)


def key_of(name: str) -> str:
    """The key of an option in a file."""
    return name.replace("_", "-")


def options_of(parser: argparse.ArgumentParser) -> Options:
    """All but what says what CMD is, and what is torchrun's alone."""
    actions = (action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS)
    return {action.dest: action for action in actions if action.dest not in ("help", "module", "no_python")}


@dataclass(frozen=True)
class Sources:
    """What the environment and the file say.

    Attributes:
        options: What they may say.
        environ: The variables.
        file: How messages call the file.
        keys: What it has, by the names of the options.
        spelled: Where each option comes from that no flag gives.
    """

    options: Options
    environ: Mapping[str, str]
    file: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, arguments: argparse.Namespace, environ: Mapping[str, str]) -> "Sources":
        """Those of a command line.

        Raises:
            RendezvousParameterError: The file cannot be read, or has a key that is no option's.
        """
        options = arguments.options()
        if not (path := arguments.config or environ.get(variable_of(CONFIG))):
            return cls(options, environ)
        file = f"The file '{printable(path)}'"
        return cls(options, environ, file, _named(_load(path, file), options, file))

    @property
    def run_options(self) -> Mapping[str, Any]:
        """What the file has for ``--option``.

        Raises:
            RendezvousParameterError: It is no table.
        """
        given = self.keys.get(OPTION, {})
        if not isinstance(given, Mapping):
            raise RendezvousParameterError(f"{self.file} has something else than a table, [{OPTION}], as '{OPTION}'.")
        return given

    def fill(self, arguments: argparse.Namespace) -> None:
        """Have them say what no flag does.

        Raises:
            RendezvousParameterError: A value cannot be read.
        """
        for name, action in self.options.items():
            if name not in (CONFIG, OPTION) and getattr(arguments, name) is None:
                setattr(arguments, name, self._value(name, action))

    def _value(self, name: str, action: argparse.Action) -> Any:
        if text := self.environ.get(variable_of(name)):
            self.spelled[name] = variable_of(name)
            # It is read with what every node has, whatever starts it.
            return None if name == "local_addr" else _read(action, text, variable_of(name))
        if name not in self.keys:
            return None
        self.spelled[name] = spelled = f"{self.file}, '{key_of(name)}'"
        value = self.keys[name]
        if not _is_switch(action):
            return _read(action, _text(action, value, spelled), spelled)
        if not isinstance(value, bool):
            raise RendezvousParameterError(f"{spelled}: true or false is expected, not {printable(repr(value))}.")
        return value


def _load(path: str, file: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as stream:
            content = tomllib.load(stream)
        has_null = _has_null(content)
    except FileNotFoundError as error:
        raise RendezvousParameterError(f"{file} is not there.") from error
    except OSError as error:
        raise RendezvousParameterError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise RendezvousParameterError(f"{file} is not TOML: {error}.") from error
    if has_null:
        # No flag and no variable has one, so nothing that reads them expects it.
        raise RendezvousParameterError(f"{file} has a null character, \\u0000, which no option can have: leave it out.")
    return content


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_null(each) for each in (*value, *value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else "\0" in str(value)


def _named(content: Mapping[str, Any], options: Options, file: str) -> dict[str, Any]:
    """What a file has, by the names of the options; it may write them with hyphens or with underscores."""
    known = {key_of(name): name for name in options if name != CONFIG}
    named: dict[str, Any] = {}
    for key, value in content.items():
        spelling = key_of(key)
        if spelling not in known:
            near = near_name(spelling, known)
            hint = f"did you mean {near}?" if near else "its keys are the options of rdzv run."
            raise RendezvousParameterError(f"{file} has the key '{printable(key)}', which is no option; {hint}")
        if known[spelling] in named:
            raise RendezvousParameterError(f"{file} has '{printable(key)}' twice, with hyphens and with underscores.")
        named[known[spelling]] = value
    return named


def _text(action: argparse.Action, value: Any, spelled: str) -> str:
    """A value of a file as a variable would have it: of what may be repeated each line is one."""
    separator = "\n" if _is_repeated(action) else "," if _is_list(action) else ""
    items = value if separator and isinstance(value, list) else [value]
    if wrong := [item for item in items if isinstance(item, bool) or not isinstance(item, str | int | float)]:
        expected = "a text, a number or a list of them" if separator else "a text or a number"
        raise RendezvousParameterError(f"{spelled}: {expected} is expected, not {printable(repr(wrong[0]))}.")
    return separator.join(map(str, items))


def _read(action: argparse.Action, text: str, spelled: str) -> Any:
    kind: Any = count if isinstance(action, argparse._CountAction) else action.type or str
    try:
        if _is_repeated(action):
            return [kind(line) for line in text.splitlines() if line.strip()]
        if not _is_switch(action):
            return kind(text)
        if text.lower() not in _SWITCH:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is neither 1 nor 0")
        return _SWITCH[text.lower()]
    except argparse.ArgumentTypeError as error:
        raise RendezvousParameterError(f"{spelled}: {error}.") from error


def _is_switch(action: argparse.Action) -> bool:
    return action.const is True


def _is_repeated(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)


def _is_list(action: argparse.Action) -> bool:
    return str(action.metavar).endswith(",...")
