"""What rdzv sets out to reach, as docs/benchmark/goals.toml has it, and whether it did: a line for each goal."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from .rows import FLOORS, ROWS
from .samples import Samples
from .tables import Table, number

__all__ = ["goals"]

_UNKNOWN: Final = "not measured"


class Point(NamedTuple):
    """One of the figures that a goal limits.

    Attributes:
        where: Which one.
        value: The figure; None: there is none.
        reason: Why there is none; empty: it was not measured.
        floor: The figure of the floor on the same service, if one was measured.
    """

    where: str
    value: float | None
    reason: str
    floor: float | None


def goals(samples: Samples, wanted: Path) -> Table:
    """The table of goals, which a file names; it says what stands in it.

    Of a few measurements: only the goals that they are about.
    """
    lines = []
    listed = [(goal, _judge(goal, samples)) for goal in tomllib.loads(wanted.read_text())["goals"]]
    is_partial = any("measured" not in goal and verdict == _UNKNOWN for goal, (_, verdict) in listed)
    for goal, (value, verdict) in listed:
        if is_partial and ("measured" in goal or verdict == _UNKNOWN):
            continue
        floor = f"; floor {goal['floor']}" if "floor" in goal and verdict != "met" else ""
        lines.append([goal["text"], value, f"{verdict}{floor}"])
    met = sum(verdict == "met" for *_, verdict in lines)
    return Table(f"Goals: {met} of {len(lines)} met", ["goal", "measured, where it is worst", "verdict"], lines)


def _judge(goal: Mapping[str, Any], samples: Samples) -> tuple[str, str]:
    """The figure, and what it means."""
    if "measured" in goal:
        return goal["measured"], goal["verdict"]
    points = list(_points(goal, samples))
    measured = [(point.value, point) for point in points if point.value is not None]
    failed = [f"{point.reason} ({point.where})" for point in points if point.value is None and point.reason]
    missed = len(failed) + sum(value > goal["at_most"] for value, _ in measured)
    if not measured and not failed:
        return "-", _UNKNOWN
    worst, at = max(measured, key=lambda one: one[0], default=(0.0, points[0]))
    value = failed[0] if failed else f"{number(worst)} {goal['unit']} ({at.where})"
    if missed:
        floor = "" if failed or at.floor is None else f"; floor {number(at.floor)}"
        return value + (f"; {missed} of {len(points)} miss it" if len(points) > 1 else ""), f"missed{floor}"
    unknown = len(points) - len(measured)
    return value, f"{unknown} of {len(points)} not measured" if unknown else "met"


def _points(goal: Mapping[str, Any], samples: Samples) -> Iterator[Point]:
    for row in goal.get("rows") or [name for name, row in ROWS.items() if row.ours]:
        for measure in goal["measures"]:
            for nodes in goal["sizes"]:
                reason = samples.reason(row, measure, nodes)
                # What failed once has failed.
                value = None if reason else _figure(goal, samples, row, measure, nodes)
                # The same calls are no floor of calls.
                projects = ("bare",) if measure.endswith(("calls", "kb")) else FLOORS
                names = (f"{project}/{ROWS[row].backend}" for project in projects)
                floors = (_figure(goal, samples, name, measure, nodes) for name in names)
                yield Point(f"{row}, {nodes:,}", value, reason, next(filter(None, floors), None))


def _figure(goal: Mapping[str, Any], samples: Samples, row: str, measure: str, nodes: int) -> float | None:
    """The median, or what it is of another, where the goal is set against that."""
    value = samples.median(row, measure, nodes)
    if value is None or (against := goal.get("against")) is None:
        return value
    other = samples.median(against.get("row", row), measure, against.get("nodes", nodes))
    return value / other if other else None
