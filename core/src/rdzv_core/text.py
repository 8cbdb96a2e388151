"""How text that others chose is shown: on one short line, which no terminal can be disturbed by."""

from collections.abc import Sequence

__all__ = ["listed", "printable", "shown"]


def listed(items: Sequence[str], separator: str = ", ", total: int = 0, most: int = 20) -> str:
    """The first items of a list, which has `total` at least, and how many more there are."""
    more = max(total, len(items)) - len(items[:most])
    return separator.join([*items[:most], *([f"and {more} more"] if more else [])])


def printable(text: str, most: int = 80) -> str:
    """Write what cannot be printed as an escape, such as ``\\n``, and keep the two ends of what is too long.

    Args:
        text: Anything.
        most: How many characters fit.
    """
    line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    half = (most - 3) // 2
    return line if len(line) <= most else f"{line[:half]}...{line[-half:]}"


def shown(value: object) -> str:
    """The `repr` of a value on one short line; ``what was given`` if it has none.

    Python writes no integer of thousands of digits, and nothing that is too deep.
    """
    try:
        return printable(repr(value))
    except (ValueError, RecursionError):
        return "what was given"
