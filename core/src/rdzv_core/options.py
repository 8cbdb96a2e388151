"""What a backend can be told: every option declared once, with its type, default, unit and meaning.

The declaration parses, refuses what it does not know (naming the nearest right name), and fills
the tables of ``rdzv backends NAME`` and the documentation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from .credentials import file_option, take_secrets, variable
from .errors import RendezvousParameterError
from .near import near_name
from .parameters import parse_boolean, parse_integer
from .text import shown

__all__ = ["PREFIX", "Kind", "Option", "parse_options", "read_options", "secret_names", "with_files"]

Kind = Literal["text", "integer", "seconds", "boolean", "path", "pairs", "numbers"]
"""What the text of an option stands for; see `Option`."""

_MAX_SECONDS = 1_000_000_000
"""Locks, sockets and `timedelta` overflow somewhere above this, each in its own way."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: As the user writes it.
        kind: ``text``, ``integer`` (of less than 64 bits), ``seconds`` (any number above zero, up to a billion),
            ``boolean`` (PyTorch's spellings: 1/true/t/yes/y and 0/false/f/no/n), ``path`` (a file that must be
            readable), ``pairs`` (``name=value;name=value``, or a mapping; parsed to a dict) or ``numbers`` (``8/16/32``
            or ``8,16,32``, or a list; parsed to an ascending tuple).
        default: The value when it is not given; None means unset.
        help: One sentence.
        choices: The only values it may have, if any; blanks around one and its case do not matter.
        secret: Whether it is confidential. It is then never shown, handed to no program unless that is asked for,
            and taken from a file (``<name>_file``) or a variable (``RDZV_<NAME>``), too.
        zero: Whether ``seconds`` may be none.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    secret: bool = False
    zero: bool = False

    def parse(self, value: Any) -> Any:
        """Turn what was given, typed or as text, into a value of this option's kind.

        Raises:
            RendezvousParameterError: It is not one; the message names option, value and what is expected.
        """
        if value is None:
            return self.default
        try:
            return self._parse(value)
        except (ValueError, TypeError, OSError) as error:
            given = "what was given" if self.secret else shown(value)
            raise RendezvousParameterError(f"The option '{self.name}' cannot be {given}: {error}.") from error

    def _parse(self, value: Any) -> Any:
        if self.kind == "boolean":
            return parse_boolean(value)
        if isinstance(value, bool):
            raise TypeError(f"{self.kind} is expected")
        if self.kind == "integer":
            return parse_integer(value)
        if self.kind == "seconds":
            return self._parse_seconds(value)
        if self.kind == "pairs":
            return _parse_pairs(value)
        if self.kind == "numbers":
            return _parse_numbers(value)
        text = value if isinstance(value, str) else str(value)  # a `FileSecret` stays one
        if self.choices:
            return self._choose(text)
        if self.kind == "path":
            with open(text, "rb"):
                pass
        return text

    def _parse_seconds(self, value: Any) -> float:
        # Python's own words for a text that is not a number name neither unit nor limit.
        with suppress(ValueError, TypeError, OverflowError):
            seconds = float(value)
            if 0 < seconds <= _MAX_SECONDS or (self.zero and seconds == 0):
                return seconds
        least = "zero or above" if self.zero else "above zero"
        raise ValueError(f"a number of seconds {least}, up to {_MAX_SECONDS}, is expected, such as 2.5")

    def _choose(self, text: str) -> str:
        for choice in self.choices:
            if choice.lower() == text.strip().lower():
                return choice
        raise ValueError(f"one of {', '.join(self.choices)} is expected")


PREFIX: Final = Option(
    "prefix", "text", "rdzv", "What the keys of every run begin with; runs with different ones never meet."
)
"""An option for backends in which runs stand beside each other under names of their own."""


def read_options(
    given: Mapping[str, Any], known: Iterable[Option], *, owner: str, besides: Sequence[str] = ()
) -> dict[str, Any]:
    """Parse `given` by the declarations; every known option is in the result.

    Args:
        given: What the user gave.
        known: The declarations.
        owner: What knows them, for messages.
        besides: Names that are given beside the options, and may have been meant.

    Raises:
        RendezvousParameterError: An option is unknown (the nearest right name is in the message)
            or has an impossible value.
    """
    known = tuple(known)
    names = [option.name for option in with_files(known)]
    for name in given:
        if name not in names:
            if name in besides:
                hint = "It is given beside the options."
            elif near := near_name(name, [*names, *besides]):
                hint = f"Did you mean '{near}'?"
            else:
                hint = f"It knows: {', '.join(sorted(names))}."
            raise RendezvousParameterError(f"{owner} knows no option '{name}'. {hint}")
    return parse_options(given, known)


def parse_options(given: Mapping[str, Any], known: Iterable[Option]) -> dict[str, Any]:
    """Parse those of `given` that are `known`, and leave the others to their owner.

    A backend uses it in its ``create_backend``, after rdzv has seen that every option has an owner.

    Raises:
        RendezvousParameterError: An option has an impossible value, or a secret cannot be read.
    """
    known = tuple(known)
    given = take_secrets(given, secret_names(known))
    return {option.name: option.parse(given.get(option.name)) for option in known}


def secret_names(options: Iterable[Option]) -> tuple[str, ...]:
    """The names of those that are secret."""
    return tuple(option.name for option in options if option.secret)


def with_files(options: Iterable[Option]) -> Iterator[Option]:
    """All that a user may give: the options, and after each secret one the option for its file."""
    for option in options:
        if not option.secret:
            yield option
            continue
        hint = f"Seen by all in the list of processes: prefer {file_option(option.name)} or {variable(option.name)}."
        yield replace(option, help=f"{option.help} {hint}")
        yield Option(file_option(option.name), "path", None, f"A file whose one line is the {option.name}.")


def _parse_numbers(value: Any) -> tuple[int, ...]:
    # A comma ends an option in RDZV_OPTIONS and for torchrun.
    items = (
        value.replace(",", "/").split("/") if isinstance(value, str) else [value] if isinstance(value, int) else value
    )
    try:
        return tuple(sorted({parse_integer(item) for item in items}))
    except (ValueError, TypeError) as error:
        raise ValueError("integers are expected, as 8/16/32") from error


def _parse_pairs(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    pairs = {}
    for item in filter(None, (item.strip() for item in str(value).split(";"))):
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"'{item}' is not name=value")
        if name.strip() in pairs:
            raise ValueError(f"it names '{name.strip()}' twice")
        pairs[name.strip()] = text.strip()
    return pairs
