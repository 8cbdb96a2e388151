#!/usr/bin/env python3
"""Draws the pictures of docs/architecture.md: ``python3 dev.py pictures``.

The packages come from their pyproject.toml files, a node's states from the table `TRANSITIONS`: only their places stand
here. What is asked for in a round is the list `ROUND`, and a test compares that with what the coroutines ask for.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

from rdzv.engine.effects import Effect, KeepAlive, OpenLease, Put, ReadAll, Wait
from rdzv.engine.registration import TRANSITIONS, NodeState, Transition

ROOT: Final = Path(__file__).resolve().parents[len(Path("dev/tools").parts)]
PICTURES: Final = ROOT / "docs" / "architecture"

_KINDS: Final = ("ground", "box", "core", "conformance", "launchers", "plugins")
_LIGHT: Final = ("#fff", "#eef1f6", "#d5e5fb", "#f9e7cd", "#dcefd9", "#e9e1f7", "#1b2230", "#566073", "#6b7688")
_DARK: Final = ("#161a21", "#262d38", "#1f3d63", "#54401f", "#274a2a", "#3d3160", "#e6eaf1", "#a9b4c4", "#8b97aa")


def _rules(colors: Sequence[str]) -> str:
    # Without variables, which some viewers do not know.
    *fills, ink, dim, line = colors
    boxes = "".join(f".{kind}{{fill:{color}}}" for kind, color in zip(_KINDS, fills, strict=True))
    return f"text{{fill:{ink}}}.dim,.code{{fill:{dim}}}{boxes}.edge,path{{stroke:{line}}}.tip{{fill:{line}}}"


_STYLE: Final = (
    "text{font:11px system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif}text.name{font-weight:600}"
    "text.code{font:10.5px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    f".line,.frame{{fill:none}}.frame,.dashed,.life{{stroke-dasharray:5 4}}{_rules(_LIGHT)}"
    f"@media (prefers-color-scheme:dark){{{_rules(_DARK)}}}"
)

Point = tuple[float, float]
"""A place in a picture, in pixels from its upper left."""


class Picture:
    """A picture in the making. It brings its own ground, so it is readable on any.

    A ``data-`` attribute says what an element stands for.
    """

    def __init__(self, title: str, width: float, height: float) -> None:
        """Begin with an empty ground."""
        self.width, self.height, self._title = width, height, title
        self._parts = [f'<rect class="ground" width="{width:g}" height="{height:g}" rx="10"/>']

    def box(self, middle: Point, width: float, height: float, kind: str = "box", **data: str) -> None:
        """Add a rectangle."""
        x, y = middle[0] - width / 2, middle[1] - height / 2
        size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._parts.append(f'<rect class="{kind} edge" {size} rx="7"{_attributes(data)}/>')

    def text(self, middle: Point, lines: Iterable[tuple[str, str]], anchor: str = "middle") -> None:
        """Add lines of text, each with its kind."""
        lines = [(kind, line) for kind, line in lines if line]
        for number, (kind, line) in enumerate(lines):
            at = f'x="{middle[0]:g}" y="{middle[1] + 4 + 13.5 * (number - (len(lines) - 1) / 2):g}"'
            self._parts.append(f'<text class="{kind}" {at} text-anchor="{anchor}">{escape(line, quote=False)}</text>')

    def arrow(self, *points: Point, kind: str = "line", **data: str) -> None:
        """Add a line, with a tip at its end; a ``life`` line has none."""
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="M{path}"{_attributes(data)}/>')
        (from_x, from_y), (x, y) = points[-2:]
        length = math.dist(*points[-2:])
        dx, dy = 8 * (x - from_x) / length, 8 * (y - from_y) / length
        tip = "".join(f"L{x - dx + s * dy / 2:.1f} {y - dy - s * dx / 2:.1f}" for s in (1, -1))
        if kind != "life":
            self._parts.append(f'<path class="tip" d="M{x:g} {y:g}{tip}Z"/>')

    def svg(self) -> str:
        """The file."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{self._title}</title>'
        return "\n".join([head, f"<style>{_STYLE}</style>", *self._parts, "</svg>\n"])


def _attributes(data: dict[str, str]) -> str:
    return "".join(f' data-{name}="{escape(value)}"' for name, value in data.items())


@dataclass(frozen=True)
class Package:
    """A package of the workspace: what it needs of the others there (`needs`), and of other projects."""

    name: str
    folder: str
    description: str
    needs: tuple["Package", ...]
    others: tuple[str, ...]

    @property
    def depth(self) -> int:
        """How many packages stand below it, one on the other."""
        return 1 + max((need.depth for need in self.needs), default=-1)


def read_packages(root: Path = ROOT) -> list[Package]:
    """The packages of the workspace."""
    files = chain.from_iterable(root.glob(f"{folder}/pyproject.toml") for folder in ("*", "plugins/*", "launchers/*"))
    projects = [(path.relative_to(root).parts[0], tomllib.loads(path.read_text())["project"]) for path in sorted(files)]
    by_name = {project["name"]: (folder, project) for folder, project in projects}

    def package(name: str) -> Package:
        folder, project = by_name[name]
        needs = [re.split(r"[^\w.-]", need)[0] for need in project.get("dependencies", ())]
        ours = tuple(package(need) for need in needs if need in by_name)
        return Package(name, folder, project["description"], ours, tuple(n for n in needs if n not in by_name))

    return [package(name) for name in by_name]


def draw_packages(packages: Sequence[Package]) -> Picture:
    """The packages as a wall: each stands on those that it may import."""
    needed = {need for package in packages for need in package.needs}
    folders = sorted({package.folder for package in packages})

    def place(package: Package) -> tuple[int, int, str]:
        # The other way round on another floor: packages of one folder stand side by side.
        return package.depth, (-1) ** (package.depth + 1) * folders.index(package.folder), package.name

    tops = sorted((package for package in packages if package not in needed), key=place)
    column, row, gap, high = 88, 62, 6, max(package.depth for package in packages)
    picture = Picture("The packages, and who may import whom", column * len(tops) + 2 * 16 - gap, row * (high + 1) + 52)
    words = "A package may import those that it stands on, and no other of these. After a + stands what is not rdzv's."
    picture.text((picture.width / 2, 22), [("dim", words)])
    for package in packages:
        over = [number for number, top in enumerate(tops) if package in (top, *top.needs)]
        if len(over) != over[-1] - over[0] + 1:
            raise ValueError(f"{package.name} has no place below all that import it.")
        # What nothing stands on reaches from the top down to its floor.
        rows = (0 if package in tops else high - package.depth), high - package.depth + 1
        middle = 16 + column * (over[0] + over[-1] + 1) / 2 - gap / 2, 42 + row * sum(rows) / 2 - gap / 2
        width, height = column * len(over) - gap, row * (rows[1] - rows[0]) - gap
        kind = package.folder if package.folder in _KINDS else "box"
        imports = " ".join(sorted(need.name for need in package.needs))
        picture.box(middle, width, height, kind, package=package.name, imports=imports)
        name, about = package.name.removeprefix("rdzv-"), [f"{package.folder}/"]
        if package in needed:
            name, about = package.name, wrap(f"{package.folder}/: {package.description}", width // 6)
        about += [f"+ {other}" for other in package.others]
        picture.text(middle, [("name", name), *(("dim", line) for line in about)])
    return picture


STATES: Final[dict[NodeState, Point]] = {
    NodeState.NEW: (122, 76),
    NodeState.REGISTERING: (122, 206),
    NodeState.REGISTERED: (392, 206),
    NodeState.LOST: (122, 380),
    NodeState.REREGISTERING: (392, 380),
    NodeState.DEREGISTERED: (676, 380),
    NodeState.STOPPED: (392, 512),
}
"""The middle of each state."""

ARROWS: Final[dict[str, tuple[tuple[Point, ...], Point, str, int]]] = {
    "NEW REGISTERING": (((122, 117), (122, 165)), (130, 134), "start", 30),
    "REGISTERING REGISTERED": (((206, 206), (308, 206)), (257, 188), "middle", 15),
    "REGISTERING LOST": (((80, 247), (80, 339)), (88, 293), "start", 15),
    "REGISTERED LOST": (((330, 247), (186, 339)), (266, 312), "start", 15),
    "LOST REREGISTERING": (((206, 352), (308, 352)), (257, 374), "middle", 15),
    "REREGISTERING LOST": (((308, 402), (206, 402)), (257, 412), "middle", 15),
    "REREGISTERING REGISTERED": (((376, 339), (376, 247)), (384, 293), "start", 15),
    "DEREGISTERED REREGISTERING": (((592, 394), (476, 394)), (541, 372), "middle", 15),
    "many DEREGISTERED": (((490, 206), (676, 206), (676, 339)), (583, 188), "middle", 30),
    "many STOPPED": (((392, 445), (392, 471)), (404, 459), "start", 30),
}
"""Of each arrow, from one state or from the frame around many: its way; of its text the middle, the side that is held
there, and the letters in a line."""


def draw_states(transitions: Sequence[Transition] = TRANSITIONS) -> Picture:
    """The states of a node. What leads from many states to the same one is drawn once, from a frame around them."""
    picture = Picture("The states of a node", 798, 566)
    words = (
        "A state is what the service holds of a node, as far as the node knows. An arrow says what happens, and by "
        "which effects the node brings it about; one that begins at a dashed frame holds for every state inside. Only "
        "in the blue state does a node trust a world."
    )
    picture.text((240, 70), [("dim", line) for line in wrap(words, 80)], "start")
    groups: dict[tuple[str, str, NodeState], list[Transition]] = {}
    for line in transitions:
        groups.setdefault((line.trigger.value, line.effects, line.target), []).append(line)
    for (trigger, effects, target), group in groups.items():
        if many := len(group) > 3:
            _frame(picture, [line.source for line in group])
        for lines in [group] if many else [[line] for line in group]:
            way, at, anchor, width = ARROWS[f"{'many' if many else lines[0].source.name} {target.name}"]
            shown = "; ".join(f"{line.source.name} {line.trigger.name} {target.name}" for line in lines)
            picture.arrow(*way, transitions=shown)
            said = [("", text) for text in wrap(trigger, width)] + [("code", text) for text in wrap(effects, width)]
            picture.text(at, said, anchor)
    for state, middle in STATES.items():
        picture.box(middle, 168, 82, "core" if state is NodeState.REGISTERED else "box", state=state.name)
        picture.text(middle, [("name", state.name), *(("", line) for line in wrap(state.value, 28))])
    return picture


def _frame(picture: Picture, inside: Sequence[NodeState]) -> None:
    (left, *_, right), (top, *_, bottom) = (sorted(STATES[state][axis] for state in inside) for axis in (0, 1))
    among = {state for state, (x, y) in STATES.items() if left <= x <= right and top <= y <= bottom}
    if among != set(inside):
        raise ValueError(f"No frame has just these inside: {', '.join(state.name for state in inside)}.")
    width, height = (10 * len(inside) - 12 + size for size in (right - left + 168, bottom - top + 82))
    picture.box(((left + right) / 2, (top + bottom) / 2), width, height, "frame")


class Step(NamedTuple):
    """What one asks another for, or the service answers; without an effect: what it decides. `rare`: not always."""

    source: str
    target: str
    effect: type[Effect] | None
    key: str
    words: str
    rare: bool = False


NODE, SERVICE, LEADER = ACTORS = "a node that joins", "the service", "the leader (a node, too)"

ROUND: Final = (
    Step(NODE, SERVICE, ReadAll, "control", "who leads? which limits? is it closed?"),
    Step(NODE, SERVICE, OpenLease, "", "for the time to live"),
    Step(NODE, SERVICE, Put, "nodes/0/<id>", "on the lease: here I am, in no round"),
    Step(SERVICE, LEADER, Wait, "nodes", "the records have changed"),
    Step(LEADER, LEADER, None, "rules.decide", "are they enough? is the last call over?"),
    Step(
        LEADER,
        SERVICE,
        Put,
        "control/pending/<round>",
        "before it evicts a member, or another attempt begins",
        rare=True,
    ),
    Step(LEADER, SERVICE, ReadAll, "nodes", "once more, the state's token in hand"),
    Step(LEADER, LEADER, None, "rules.decide", "still so?"),
    Step(LEADER, SERVICE, Put, "control/state", "the world, if the token still matches"),
    Step(SERVICE, NODE, Wait, "control", "the world"),
    Step(NODE, NODE, None, "", "I am rank 2 of 4"),
    Step(NODE, SERVICE, KeepAlive, "", "once an interval, as long as it lives"),
)


def draw_round(steps: Sequence[Step] = ROUND) -> Picture:
    """One round as a sequence."""
    picture = Picture("One round", 798, 78 + 48 * len(steps))
    columns = dict(zip(ACTORS, (128, 399, 670), strict=True))
    for actor, x in columns.items():
        picture.arrow((x, 30), (x, picture.height - 14), kind="life")
        picture.box((x, 30), 184, 30, "core" if actor == SERVICE else "box")
        picture.text((x, 30), [("name", actor)])
    for number, step in enumerate(steps):
        y, x, end = 86 + 48 * number, columns[step.source], columns[step.target]
        asked = f"{step.effect.__name__} {step.key}".strip() if step.effect else step.key
        if step.source == step.target:
            picture.box((x, y), 236, 36)
            picture.text((x, y), [("code", asked), ("", step.words)])
            continue
        picture.arrow((x, y), (end, y), kind="line dashed" if step.rare else "line", step=asked)
        picture.text(((x + end) / 2, y - 9), [("code", f"{asked} answers" if step.source == SERVICE else asked)])
        picture.text(((x + end) / 2, y + 9), [("dim", step.words)])
    return picture


def draw() -> dict[Path, str]:
    """Every picture, by its file."""
    pictures = {"packages": draw_packages(read_packages()), "states": draw_states(), "round": draw_round()}
    return {PICTURES / f"{name}.svg": picture.svg() for name, picture in pictures.items()}


if __name__ == "__main__":
    for path, svg in draw().items():
        path.write_text(svg)
        print(path.relative_to(ROOT))
