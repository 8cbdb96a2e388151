"""The variables that stand for flags of `rdzv run`: `RDZV_MAX_RESTARTS` for `--max-restarts`, and so on."""

import argparse
from collections.abc import Mapping
from dataclasses import Field
from typing import Any, Final

from rdzv_core.credentials import variable
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.text import printable

_SWITCH: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def value_of(option: Field[Any], environ: Mapping[str, str]) -> Any:
    """What the variable of an option says; None: it is not set, or empty.

    Args:
        option: A field with the arguments of `add_argument`.
        environ: The variables.

    Raises:
        RendezvousParameterError: It cannot be read.
    """
    name = variable(option.name)
    if not (text := environ.get(name)):
        return None
    try:
        return _read(option.metadata, text)
    except argparse.ArgumentTypeError as error:
        raise RendezvousParameterError(f"{name}: {error}.") from error


def _read(flag: Mapping[str, Any], text: str) -> Any:
    kind = flag.get("type", str)
    if flag.get("action") == "append":
        return [kind(line) for line in text.splitlines() if line.strip()]
    if flag.get("action") != "store_true":
        return kind(text)
    if text.lower() not in _SWITCH:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is neither 1 nor 0")
    return _SWITCH[text.lower()]
