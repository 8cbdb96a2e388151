"""Which rendezvous a node wants: from arguments, a mapping, a URL, a TOML file or the environment.

All five end in the same constructor, and the four that are written by people know the same names:
those of its arguments, with ``min`` and ``max`` or ``nnodes = "2:4"`` for the two numbers of nodes.
Every other name is an option.
"""

import json
import operator
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeVar
from urllib.parse import unquote

from .endpoints import hide_login
from .errors import RendezvousParameterError
from .near import near_name
from .text import printable, shown

__all__ = ["RendezvousParameters", "options_of", "parse_nnodes"]

_T = TypeVar("_T")

ARGUMENTS: Final = ("backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr")
"""What is no option."""

_REQUIRED: Final = ("backend", "run_id", "min_nodes", "max_nodes")
_NUMBERS: Final = ("min_nodes", "max_nodes")
SHORT_NAMES: Final = ("nnodes", "min", "max")
"""What else says the two numbers."""
_TRUE: Final = ("1", "true", "t", "yes", "y")
_FALSE: Final = ("0", "false", "f", "no", "n")
SECRET_NAME: Final = re.compile(r"(pass(word|wd|phrase)|secret|token|credential)(?!.*_file$)", re.IGNORECASE)
"""Found in the name of an option or a variable that holds a secret, as far as names tell; a file's name is none."""
_SEMICOLON: Final = re.compile(r"[^=]*;\s*[A-Za-z_]+\s*=.*", re.DOTALL)
"""A value that goes on with another option; one that has pairs, as in ``labels=a=1;b=2``, begins with a name."""
_DEEPEST: Final = 20
"""Levels that RDZV_OPTIONS may have: what is far deeper can be read, and then neither shown nor handed on."""
_URL: Final = re.compile(
    r"(?P<backend>[A-Za-z][A-Za-z0-9+._-]*):(?://(?P<authority>[^/?#]*))?(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?"
)


class RendezvousParameters:
    """Everything one node says about the rendezvous it wants.

    Attributes:
        backend: The name of the backend.
        endpoint: Where its service is; what this means is the backend's affair. Empty: its default.
        run_id: Which run; the nodes that give the same one meet.
        min_nodes: The smallest world.
        max_nodes: The largest world.
        local_addr: This node's address as the others reach it; None lets rdzv find it out.
        config: The options, of the core and of the backend, typed or as text.
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
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config: dict[str, Any] = kwargs

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read parameters from a mapping: arguments by name, options beside them or under ``options``.

        Numbers may be given as text.

        Raises:
            RendezvousParameterError: Something is missing, given twice, or of the wrong type.
        """
        return cls(**_arguments(mapping, "The mapping"))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read parameters from a TOML file: arguments as keys, options beside them or in ``[options]``.

        Raises:
            RendezvousParameterError: The file cannot be read or is not TOML; or as `from_mapping`.
        """
        name = f"The file '{os.fspath(path)}'"
        try:
            with open(path, "rb") as file:
                content = tomllib.load(file)
        except FileNotFoundError as error:
            raise RendezvousParameterError(f"{name} is not there.") from error
        except OSError as error:
            raise RendezvousParameterError(f"{name} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:
            raise RendezvousParameterError(f"{name} is not TOML: {error}.") from error
        except RecursionError as error:
            raise RendezvousParameterError(f"{name} has tables or lists nested too deeply.") from error
        return cls(**_arguments(content, name))

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read parameters from ``backend://[user[:password]@]endpoint/run-id?min=2&max=4&option=value``.

        The endpoint may be a list: ``etcd-v3://host1:2379,host2:2379/job-7?min=2&max=4``. User and
        password become the options ``user`` and ``password``. Where nothing stands between ``//`` and
        the path (or there is no ``//``), the path is the endpoint, and the query gives the run id:
        ``sqlite:///tmp/jobs.db?run_id=job-7&nnodes=2``. The path ``jobs.db`` is relative in
        ``sqlite:jobs.db?...``; ``sqlite:?...`` leaves the endpoint to the backend. Percent-encoding is
        undone in every part; a plus is a plus. A password has / and ? as %2F and %3F, a run id has @ as %40.

        Raises:
            RendezvousParameterError: It is not such a URL; or as `from_mapping`. The message does
                not show the URL, since that may hold a password.
        """
        match = _URL.fullmatch(url)
        if match is None:
            raise RendezvousParameterError(
                "The rendezvous URL must look like etcd-v3://host:2379/run-id?min=2&max=4 "
                "(write # and other special characters as %23 and so on)."
            )
        source = f"The URL that begins with '{match['backend']}:'"
        try:
            return cls(**_arguments(_split_url(match, source), source))
        except UnicodeDecodeError as error:
            raise RendezvousParameterError(f"{source} has percent-encoded bytes that are not UTF-8.") from error

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read parameters from environment variables; an empty one counts as not given.

        They are ``RDZV_BACKEND``, ``RDZV_ENDPOINT``, ``RDZV_RUN_ID``, ``RDZV_MIN_NODES`` and
        ``RDZV_MAX_NODES`` (or ``RDZV_NNODES``, as ``2:4`` or ``4``, which the other two overrule),
        ``RDZV_LOCAL_ADDR``, and ``RDZV_OPTIONS``: either ``name=value,name=value`` or, for values with
        commas, ``;name=`` or types, a JSON object.

        Raises:
            RendezvousParameterError: As `from_mapping`, naming the variable.
        """
        given: dict[str, Any] = {}
        if nnodes := environ.get("RDZV_NNODES"):
            given["min_nodes"], given["max_nodes"] = parse_nnodes(nnodes, "RDZV_NNODES")
        given |= {name: value for name in ARGUMENTS if (value := environ.get(variable(name)))}
        given["options"] = options_of(environ)
        others = [name for name in environ if name.startswith("RDZV_")]
        return cls(**_arguments(given, "The environment", variable, others))

    def to_env(self) -> dict[str, str]:
        """The environment variables from which `from_env` makes equal parameters in a child process.

        They hold every option, passwords too; `rdzv run` leaves those out.

        Raises:
            RendezvousParameterError: An option's value is of a type that JSON does not keep.
        """
        try:
            options = json.dumps(self.config, allow_nan=False)
            if json.loads(options) != self.config:
                raise ValueError("a tuple or a key that is not text")
        except (TypeError, ValueError, RecursionError) as error:
            raise RendezvousParameterError(
                f"The options ({', '.join(self.config)}) cannot be passed through the environment: {error}. "
                "Use texts, numbers, booleans, lists and tables."
            ) from error
        values = {name: getattr(self, name) for name in ARGUMENTS}
        texts = {variable(name): "" if value is None else str(value) for name, value in values.items()}
        return texts | {"RDZV_OPTIONS": options}

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
            TypeError: It is no number and no text, as PyTorch has it.
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


def parse_nnodes(text: str, name: str = "nnodes") -> tuple[int, int]:
    """Read ``MIN:MAX``, or one number for both.

    Args:
        text: What the user wrote.
        name: Where, for the message.

    Raises:
        RendezvousParameterError: It is neither, or they are not 1 <= MIN <= MAX.
    """
    low, colon, high = text.partition(":")
    expected = f"{name} is '{printable(text)}'; MIN:MAX, such as 2:4, or one number is expected"
    try:
        least, most = parse_integer(low), parse_integer(high if colon else low)
    except ValueError as error:
        raise RendezvousParameterError(f"{expected}.") from error
    if not 1 <= least <= most:
        raise RendezvousParameterError(f"{expected}, with 1 <= MIN <= MAX.")
    return least, most


def _arguments(
    given: Mapping[str, Any], source: str, spell: Callable[[str], str] = str, others: Iterable[str] = ()
) -> dict[str, Any]:
    """The keyword arguments of the constructor.

    Args:
        given: Arguments and options.
        source: Where they come from, for messages.
        spell: How the source calls an argument.
        others: What else the source has, in which a misspelt argument may be found.
    """
    items = dict(given)
    options = items.pop("options", {})
    if not isinstance(options, Mapping):
        raise RendezvousParameterError(f"{source} has something else than a table of options as 'options'.")
    if "nnodes" in items:
        nnodes = items.pop("nnodes")
        least, most = parse_nnodes(nnodes if isinstance(nnodes, str) else shown(nnodes))
        items = _merge(items, {"min": least, "max": most}, source)
    short = {f"{name}_nodes": items.pop(name) for name in ("min", "max") if name in items}
    items = _merge(items, short, source)
    if misplaced := [name for name in ARGUMENTS if name in options]:
        raise RendezvousParameterError(f"{source} has '{misplaced[0]}' among the options; it belongs beside them.")
    items = _merge(items, options, source)
    if missing := [name for name in _REQUIRED if items.get(name) in (None, "")]:
        raise RendezvousParameterError(_explain_missing(missing, source, spell, [*items, *others]))
    items.setdefault("endpoint", "")
    return {name: _check_type(name, value, source, spell) for name, value in items.items()}


def _explain_missing(missing: list[str], source: str, spell: Callable[[str], str], given: list[str]) -> str:
    wanted = [spell(name) for name in missing]
    numbers = [spell(name) for name in missing if name in _NUMBERS]
    if len(numbers) == len(_NUMBERS):
        wanted[-2:] = [f"{spell('nnodes')}, such as 2:4 or 2 (or {' and '.join(numbers)})"]
    spellings = {spell(name) for name in (*missing, *(SHORT_NAMES if numbers else ()))}
    known = {spell(name) for name in (*ARGUMENTS, *SHORT_NAMES, "options")}
    hints = [
        f" It has '{name}': did you mean '{near}'?"
        for name in map(str, given)
        if name not in known and (near := near_name(name, spellings))
    ]
    return f"{source} gives no {', no '.join(wanted)}.{''.join(hints)}"


def _merge(items: dict[str, Any], more: Mapping[str, Any], source: str) -> dict[str, Any]:
    if twice := [name for name in more if name in items]:
        raise RendezvousParameterError(f"{source} gives '{twice[0]}' twice.")
    return {**items, **more}


def _check_type(name: str, value: Any, source: str, spell: Callable[[str], str]) -> Any:
    if not isinstance(name, str):
        raise RendezvousParameterError(f"{source} has the name {shown(name)}; every name must be text.")
    if name in _NUMBERS:
        try:
            return parse_integer(value)
        except ValueError as error:
            raise RendezvousParameterError(
                f"{source} has {shown(value)} as {spell(name)}; an integer is expected."
            ) from error
    if name in ARGUMENTS and not isinstance(value, str) and (name, value) != ("local_addr", None):
        raise RendezvousParameterError(
            f"{source} has {shown(value)} as {spell(name)}; text is expected: put it in quotes."
        )
    return value


def _split_url(match: re.Match[str], source: str) -> dict[str, Any]:
    # A slash or a question mark in a password ends what stands before the @ too early: the rest of it would be shown as
    # a run id or as an option, and its beginning as the endpoint. (Every query has a question mark before it.)
    if match["authority"] and ("@" in match["path"] or re.search(r"@.*\?", match["query"] or "")):
        raise RendezvousParameterError(
            f"{source} has an @ behind its first / or ?. In a user or a password write / as %2F and ? as %3F; in a run "
            "id or an option write @ as %40."
        )
    credentials, _, hosts = (match["authority"] or "").rpartition("@")
    user, _, password = credentials.partition(":")
    items: dict[str, Any] = {"backend": match["backend"]}
    if hosts:
        items["endpoint"] = _decode(hosts)
        if run_id := match["path"].removeprefix("/"):
            items["run_id"] = _decode(run_id)
    else:
        items["endpoint"] = _decode(match["path"])
    options = {name: _decode(text) for name, text in (("user", user), ("password", password)) if text}
    for item in filter(None, (match["query"] or "").split("&")):
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise RendezvousParameterError(f"{source} has a query that is not name=value&name=value.")
        items = _merge(items, {_decode(name): _decode(value)}, source)
    return _merge(items, {"options": options}, source)


def _decode(text: str) -> str:
    return unquote(text, errors="strict")


def variable(name: str) -> str:
    """The environment variable for an argument, or for an option that is secret."""
    return f"RDZV_{name.upper()}"


def options_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read RDZV_OPTIONS. Values are not shown in messages, since they may be passwords.

    Raises:
        RendezvousParameterError: It cannot be read, or names an option twice.
    """
    text = environ.get("RDZV_OPTIONS", "")
    if text.lstrip().startswith("{"):
        return _json_object(text)
    options: dict[str, Any] = {}
    pairs = [item.partition("=") for item in text.split(",")] if text.strip() else []
    for position, (name, _, value) in enumerate(pairs, start=1):
        if not name.strip() or not value.strip():
            raise RendezvousParameterError(
                f"RDZV_OPTIONS must be name=value,name=value or a JSON object; item {position} is neither."
            )
        if _SEMICOLON.fullmatch(value):
            raise RendezvousParameterError(
                f"RDZV_OPTIONS must be name=value,name=value or a JSON object; item {position} has a semicolon before "
                "another name. (A value that has one belongs into a JSON object.)"
            )
        if name.strip() in options:
            raise RendezvousParameterError(f"RDZV_OPTIONS names the option '{name.strip()}' twice.")
        options[name.strip()] = value.strip()
    return options


def _json_object(text: str) -> dict[str, Any]:
    try:
        given: dict[str, Any] = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_constant)
        if _depth(given) > _DEEPEST:
            raise RecursionError
    except RendezvousParameterError:
        raise
    except ValueError as error:
        raise RendezvousParameterError(f"RDZV_OPTIONS begins as JSON and is not: {error}.") from error
    except RecursionError as error:
        raise RendezvousParameterError(
            f"RDZV_OPTIONS has JSON of more than {_DEEPEST} levels; an option is a text, a number, true, false or an "
            "object of texts."
        ) from error
    return given


def _no_constant(name: str) -> Any:
    raise ValueError(f"it has the number {name}, which JSON does not know")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RendezvousParameterError(f"RDZV_OPTIONS names '{printable(name)}' twice in one JSON object.")
        found[name] = value
    return found


def _depth(value: Any) -> int:
    """How many objects and lists are one in another."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_depth, inside), default=0)
