"""Where parameters come from: a mapping, a URL, a TOML file, the environment, flags; one of them, or several in layers.

All are written by people, and know the same names: those of the arguments of `RendezvousParameters`, with ``min`` and
``max`` or ``nnodes = "2:4"`` for the two numbers of nodes. Every other name is an option.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from rdzv_core.credentials import file_option, variable
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.near import near_name
from rdzv_core.parameters import ARGUMENTS, SHORT_NAMES, RendezvousParameters, parse_integer
from rdzv_core.text import printable, shown

__all__ = [
    "Layer",
    "environment",
    "from_env",
    "from_mapping",
    "from_toml",
    "from_url",
    "merge",
    "parse_nnodes",
    "to_env",
]

_REQUIRED: Final = ("backend", "run_id", "min_nodes", "max_nodes")
_NUMBERS: Final = ("min_nodes", "max_nodes")
_SPELLINGS: Final = (("nnodes", "min", "min_nodes"), ("nnodes", "max", "max_nodes"))
"""The names under which a source may give the one and the other."""
_SEMICOLON: Final = re.compile(r"[^=]*;\s*[A-Za-z_]+\s*=.*", re.DOTALL)
"""A value that goes on with another option; one that has pairs, as in ``labels=a=1;b=2``, begins with a name."""
_DEEPEST: Final = 20
"""Levels that RDZV_OPTIONS may have: what is far deeper can be read, and then neither shown nor handed on."""
_URL: Final = re.compile(
    r"(?P<backend>[A-Za-z][A-Za-z0-9+._-]*):(?://(?P<authority>[^/?#]*))?(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?"
)


@dataclass(frozen=True)
class Layer:
    """What one source says.

    Attributes:
        source: Which one, for messages, such as ``The environment``.
        given: Arguments by their names, and options, beside them or under ``options``.
        spell: How the source calls an argument.
        others: What else the source has, in which a misspelt argument may be found.
    """

    source: str
    given: Mapping[str, Any]
    spell: Callable[[str], str] = str
    others: tuple[str, ...] = ()


def merge(*layers: Layer, secrets: Iterable[str] = ()) -> RendezvousParameters:
    """The parameters that several sources describe; of those that give a name, the first counts.

    Args:
        layers: At least one.
        secrets: The options that are secret. Such a one and its file are one thing: who gives either hides both.

    Raises:
        RendezvousParameterError: Something is missing, given twice by one source, or of the wrong type.
    """
    items: dict[str, Any] = {}
    hidden: set[str] = set()
    pairs = [{name, file_option(name)} for name in secrets]
    for layer in layers:
        said = _said(layer, both_numbers=items.keys() >= {*_NUMBERS})
        for name, value in said.items():
            # What is empty is said, too: a layer below must not take its place.
            if name not in items and name not in hidden and not (value is None and name in _REQUIRED):
                items[name] = _check_type(name, value, layer)
        hidden = {each for pair in pairs if pair & items.keys() for each in pair}
    if missing := [name for name in _REQUIRED if items.get(name) in (None, "")]:
        raise RendezvousParameterError(_explain_missing(missing, layers[0], list(items)))
    items.setdefault("endpoint", "")
    return RendezvousParameters(**items)


def from_mapping(mapping: Mapping[str, Any]) -> RendezvousParameters:
    """Read parameters from a mapping: arguments by name, options beside them or under ``options``.

    Numbers may be given as text.

    Raises:
        RendezvousParameterError: Something is missing, given twice, or of the wrong type.
    """
    return merge(Layer("The mapping", mapping))


def from_toml(path: str | os.PathLike[str]) -> RendezvousParameters:
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
    return merge(Layer(name, content))


def from_url(url: str) -> RendezvousParameters:
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
        return merge(Layer(source, _split_url(match, source)))
    except UnicodeDecodeError as error:
        raise RendezvousParameterError(f"{source} has percent-encoded bytes that are not UTF-8.") from error


def from_env(environ: Mapping[str, str] = os.environ) -> RendezvousParameters:
    """Read parameters from environment variables; an empty one counts as not given.

    They are ``RDZV_BACKEND``, ``RDZV_ENDPOINT``, ``RDZV_RUN_ID``, ``RDZV_MIN_NODES`` and
    ``RDZV_MAX_NODES`` (or ``RDZV_NNODES``, as ``2:4`` or ``4``, which the other two overrule),
    ``RDZV_LOCAL_ADDR``, and ``RDZV_OPTIONS``: either ``name=value,name=value`` or, for values with
    commas, ``;name=`` or types, a JSON object.

    Raises:
        RendezvousParameterError: As `from_mapping`, naming the variable.
    """
    return merge(*environment(environ))


def environment(environ: Mapping[str, str] = os.environ) -> tuple[Layer, Layer]:
    """The layers of `from_env`: ``RDZV_NNODES`` stands below all others.

    Raises:
        RendezvousParameterError: ``RDZV_OPTIONS`` cannot be read.
    """
    source, others = "The environment", tuple(name for name in environ if name.startswith("RDZV_"))
    given: dict[str, Any] = {name: value for name in ARGUMENTS if (value := environ.get(variable(name)))}
    nnodes = {"nnodes": value} if (value := environ.get(variable("nnodes"))) else {}
    options = {"options": _options_of(environ)}
    return Layer(source, given | options, variable, others), Layer(source, nnodes, variable)


def to_env(params: RendezvousParameters) -> dict[str, str]:
    """The environment variables from which `from_env` makes equal parameters in a child process.

    They hold every option, passwords too; `rdzv run` leaves those out.

    Raises:
        RendezvousParameterError: An option's value is of a type that JSON does not keep.
    """
    try:
        options = json.dumps(params.config, allow_nan=False)
        if json.loads(options) != params.config:
            raise ValueError("a tuple or a key that is not text")
    except (TypeError, ValueError, RecursionError) as error:
        raise RendezvousParameterError(
            f"The options ({', '.join(params.config)}) cannot be passed through the environment: {error}. "
            "Use texts, numbers, booleans, lists and tables."
        ) from error
    values = {name: getattr(params, name) for name in ARGUMENTS}
    texts = {variable(name): "" if value is None else str(value) for name, value in values.items()}
    return texts | {"RDZV_OPTIONS": options}


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


def _said(layer: Layer, *, both_numbers: bool) -> dict[str, Any]:
    """The arguments and options of a layer, in one mapping.

    Args:
        layer: The layer.
        both_numbers: Whether one above it gives both numbers of nodes.
    """
    items = dict(layer.given)
    options = items.pop("options", {})
    if not isinstance(options, Mapping):
        raise RendezvousParameterError(f"{layer.source} has something else than a table of options as 'options'.")
    if both_numbers or items.get("nnodes") is None:
        items.pop("nnodes", None)
    for names in _SPELLINGS:
        if len(given := [name for name in names if name in items]) > 1:
            which = " and ".join(f"'{name}'" for name in given)
            raise RendezvousParameterError(f"{layer.source} gives {which}, which mean the same: leave one out.")
    if "nnodes" in items:
        nnodes = items.pop("nnodes")
        text = nnodes if isinstance(nnodes, str) else shown(nnodes)
        items["min_nodes"], items["max_nodes"] = parse_nnodes(text, layer.spell("nnodes"))
    items |= {f"{name}_nodes": items.pop(name) for name in ("min", "max") if name in items}
    if misplaced := [name for name in ARGUMENTS if name in options]:
        raise RendezvousParameterError(
            f"{layer.source} has '{misplaced[0]}' among the options; it belongs beside them."
        )
    return _join(items, options, layer.source)


def _explain_missing(missing: list[str], layer: Layer, given: list[str]) -> str:
    spell = layer.spell
    wanted = [spell(name) for name in missing]
    numbers = [spell(name) for name in missing if name in _NUMBERS]
    if len(numbers) == len(_NUMBERS):
        wanted[-2:] = [f"{spell('nnodes')}, such as 2:4 or 2 (or {' and '.join(numbers)})"]
    spellings = {spell(name) for name in (*missing, *(SHORT_NAMES if numbers else ()))}
    known = {*ARGUMENTS, *(spell(name) for name in (*ARGUMENTS, *SHORT_NAMES, "options"))}
    hints = [
        f" It has '{name}': did you mean '{near}'?"
        for name in (*map(str, given), *layer.others)
        if name not in known and (near := near_name(name, spellings))
    ]
    return f"{layer.source} gives no {', no '.join(wanted)}.{''.join(hints)}"


def _join(items: dict[str, Any], more: Mapping[str, Any], source: str) -> dict[str, Any]:
    if twice := [name for name in more if name in items]:
        raise RendezvousParameterError(f"{source} gives '{twice[0]}' twice.")
    return {**items, **more}


def _check_type(name: str, value: Any, layer: Layer) -> Any:
    source, spell = layer.source, layer.spell
    if value == "" and name in _REQUIRED:
        return value  # which `merge` refuses, as what is missing
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
    endpoint, run_id = (hosts, match["path"].removeprefix("/")) if hosts else (match["path"], "")
    items: dict[str, Any] = {"backend": match["backend"], "endpoint": _decode(endpoint)}
    if run_id:
        items["run_id"] = _decode(run_id)
    options = {name: _decode(text) for name, text in (("user", user), ("password", password)) if text}
    for item in filter(None, (match["query"] or "").split("&")):
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise RendezvousParameterError(f"{source} has a query that is not name=value&name=value.")
        items = _join(items, {_decode(name): _decode(value)}, source)
    return _join(items, {"options": options}, source)


def _decode(text: str) -> str:
    return unquote(text, errors="strict")


def _options_of(environ: Mapping[str, str]) -> dict[str, Any]:
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
