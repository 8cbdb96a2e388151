"""A typed codec: frozen dataclasses to JSON and back. Nothing that is read is believed before its type was checked, and
its size: of what is read the next record is made, and keys."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from rdzv_core.backend import MAX_PAYLOAD
from rdzv_core.envelope import other_version
from rdzv_core.errors import RendezvousStateError
from rdzv_core.text import shown

_SCHEMA: Final = 3

WAY_OUT: Final = "Once no node is left, `rdzv close --purge` removes it."
"""What a user can do about a value that cannot be read."""

LOCAL: Final = {"local": True}
"""The metadata of a field that is not written."""

LATER: Final = {"later": True}
"""The metadata of a field that an older version of rdzv did not write: where it is missing it is None."""

DIGITS: Final = 19
"""No number that rdzv writes has more digits, in a record or in the name of a key."""

_LONGEST: Final = 32768
"""Characters of a text; one that goes from record to record fits into any, however JSON writes it."""

_IN_NO_NAME: Final = r"\x00-\x20\x7f/\ud800-\udfff"
_LONGEST_NAME: Final = 255
_NAME: Final = re.compile(f"[^{_IN_NO_NAME}]{{0,{_LONGEST_NAME}}}")

Name = Annotated[str, _NAME]
"""The id of a node, or an address: it becomes part of a key, or the value of a variable."""

_R = TypeVar("_R", bound="Record")
_Reader = Callable[[Any], Any]


class Record:
    """A dataclass that is written down whole."""

    __slots__ = ()

    def encode(self) -> bytes:
        """The JSON for the service."""
        return json.dumps({"schema": _SCHEMA, **_plain(self)}, default=_plain, separators=(",", ":")).encode()


def as_name(text: str) -> str:
    """A text as far as it fits into a `Name`."""
    return re.sub(f"[{_IN_NO_NAME}]", "?", text)[:_LONGEST_NAME]


def decode(kind: type[_R], payload: bytes) -> _R:
    """Read a record.

    Raises:
        RendezvousStateError: The bytes are not such a record.
    """
    try:
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"{len(payload)} bytes")
        # See `Envelope.unpack`.
        value, hint = json.loads(str(payload, "utf-8")), cast("Any", kind)
        if (schema := _natural(_object(value)["schema"])) != _SCHEMA:
            raise other_version(f"The {_spelled(kind)} in the service", schema, _SCHEMA)
        record: _R = _reader(hint)(value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"The service holds a {_spelled(kind)} that this version cannot read ({shown(error)}): {payload[:80]!r}. "
            f"{WAY_OUT}"
        ) from error
    return record


def _spelled(kind: type[Any]) -> str:
    """The name of a record, in words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()


def _plain(value: Any) -> Any:
    """What `json` knows, of a dataclass or a mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _written(kind)}


@cache
def _written(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.metadata != LOCAL)


@cache
def _reader(hint: Any) -> _Reader:
    """What reads a value of a type, and raises if it is of another."""
    if is_dataclass(hint):
        return _object_reader(hint)
    if hint == Name:
        return _name
    inner = [_reader(part) for part in get_args(hint)]
    if get_origin(hint) is UnionType:
        return lambda value: None if value is None else inner[0](value)
    if get_origin(hint) is tuple:
        return lambda value: tuple([inner[0](item) for item in _exactly(list, value)])
    if hint == Mapping[Name, int]:
        return _naturals
    if get_origin(hint) is Mapping:
        return lambda value: {key: inner[1](item) for key, item in _exactly(dict, value).items()}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(_exactly(str, value))
    return {int: _natural, str: _text}.get(hint, lambda value: _exactly(hint, value))


def _object_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = [(name, _reader(hints[name])) for name in _written(kind)]
    later = {field.name for field in fields(kind) if field.metadata == LATER}

    def read(value: Any) -> Any:
        given, found, name = _object(value), {}, ""
        try:
            for name, reader in readers:
                found[name] = reader(given.get(name) if name in later else given[name])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        return kind(**found)

    return read


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError("not an object")
    return value


def _exactly(kind: type[Any], value: Any) -> Any:
    # bool is an int in Python, but not in a record.
    if type(value) is not kind:
        raise TypeError(f"{shown(value)} is no {kind.__name__}")
    return value


def _naturals(value: Any) -> dict[str, int]:
    # A page has 64 of them, and each node of a large world reads one: checked one by one it takes twice as long.
    numbers: dict[str, int] = _exactly(dict, value)
    if numbers and (set(map(type, numbers.values())) - {int} or min(numbers.values()) < 0):
        raise ValueError("not all are numbers from 0 on")
    if not all(map(_NAME.fullmatch, numbers)):
        raise ValueError("not all are names")
    return numbers


def _natural(value: Any) -> int:
    if not 0 <= _exactly(int, value) < 10**DIGITS:
        raise ValueError(f"{shown(value)} is below 0, or too large")
    return int(value)


def _text(value: Any) -> str:
    if len(_exactly(str, value)) > _LONGEST:
        raise ValueError(f"{len(value)} characters")
    return str(value)


def _name(value: Any) -> str:
    if not _NAME.fullmatch(_exactly(str, value)):
        raise ValueError(f"{shown(value)} is no name")
    return str(value)
