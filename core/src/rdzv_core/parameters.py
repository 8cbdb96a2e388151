"""Which rendezvous a node wants: PyTorch's class, whose keywords beyond its arguments are options."""

import copy
import operator
import re
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

from .endpoints import hide_login
from .errors import RendezvousParameterError

__all__ = ["ARGUMENTS", "SECRET_NAME", "SHORT_NAMES", "RendezvousParameters"]

_T = TypeVar("_T")

ARGUMENTS: Final = ("backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr")
"""The arguments; every other name is an option."""

SHORT_NAMES: Final = ("nnodes", "min", "max")
"""Other names for the two numbers of nodes."""
_TRUE: Final = ("1", "true", "t", "yes", "y")
_FALSE: Final = ("0", "false", "f", "no", "n")
SECRET_NAME: Final = re.compile(r"(pass(word|wd|phrase)|secret|token|credential)(?!.*_file$)", re.IGNORECASE)
"""Found in the name of an option or a variable that holds a secret, as far as names tell; a file's name is none."""


class RendezvousParameters:
    """Everything one node says about the rendezvous it wants.

    Attributes:
        backend: The name of the backend.
        endpoint: Where its service is; what this means is the backend's affair. Empty: its default.
        run_id: Which run; the nodes that give the same one meet.
        min_nodes: The smallest world.
        max_nodes: The largest world.
        local_addr: This node's address as the others reach it; None lets rdzv find it out.
        config: The options, of rdzv and of the backend, typed or as text.
    """

    def __init__(
        self,
        /,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        """See the attributes; every further keyword is an option.

        Raises:
            RendezvousParameterError: The backend is empty, or the numbers of nodes are not
                1 <= `min_nodes` <= `max_nodes`.
        """
        if not backend:
            raise RendezvousParameterError("The rendezvous backend name must be a non-empty string.")
        check_limits(min_nodes, max_nodes, "rendezvous nodes")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id_text(run_id)
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config: dict[str, Any] = kwargs

    def with_defaults(self, **options: Any) -> Self:
        """A copy with these options where they are not given."""
        found = copy.copy(self)
        found.config = options | self.config
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """The option `key` as it was given, or `default` if it was not."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The option `key` as a boolean: 1/true/t/yes/y or 0/false/f/no/n in any case, typed or as text.

        Raises:
            RendezvousParameterError: It is something else.
        """
        return self._get_as(parse_boolean, "boolean", key, default)

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The option `key` as an integer.

        Raises:
            RendezvousParameterError: It is something else.
            TypeError: It is neither a number nor a text, as PyTorch has it.
        """
        return self._get_as(int, "integer", key, default)

    def _get_as(self, parse: Callable[[Any], _T], kind: str, key: str, default: _T | None) -> _T | None:
        value = self.get(key, default)
        try:
            return None if value is None else parse(value)
        except (ValueError, OverflowError) as error:
            raise RendezvousParameterError(
                f"The rendezvous configuration option '{key}' does not represent a valid {kind} value."
            ) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RendezvousParameters) and vars(self) == vars(other)

    def __repr__(self) -> str:
        values = vars(self) | {"endpoint": hide_login(str(self.endpoint))}
        options = values.pop("config")
        values |= {name: "***" if SECRET_NAME.search(name) else value for name, value in options.items()}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def run_id_text(run_id: str) -> str:
    """A run id as text: PyTorch takes a number, too, such as a scheduler's job id."""
    return str(run_id) if isinstance(run_id, int) else run_id


def check_limits(min_nodes: int, max_nodes: int, nodes: str) -> None:
    """Refuse numbers of `nodes` that are not 1 <= `min_nodes` <= `max_nodes`, in PyTorch's words.

    Raises:
        RendezvousParameterError: They are not.
    """
    if min_nodes < 1:
        raise RendezvousParameterError(f"The minimum number of {nodes} ({min_nodes}) must be greater than zero.")
    if max_nodes < min_nodes:
        raise RendezvousParameterError(
            f"The maximum number of {nodes} ({max_nodes}) must be greater than or equal to the "
            f"minimum number of {nodes} ({min_nodes})."
        )


def parse_boolean(value: Any) -> bool:
    """Read PyTorch's spellings, typed or as text: 1/true/t/yes/y or 0/false/f/no/n in any case.

    Raises:
        ValueError: It is something else.
    """
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ValueError("a boolean is expected, such as true or false")
    return text in _TRUE


def parse_integer(value: Any) -> int:
    """Read an integer, typed or as text. One of thousands of digits could neither be shown nor written down.

    Raises:
        ValueError: It is something else, or has 64 bits or more.
    """
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (ValueError, TypeError):
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError("an integer is expected, such as 3")
    if number.bit_length() >= 64:
        raise ValueError("an integer of less than 64 bits is expected")
    return number
