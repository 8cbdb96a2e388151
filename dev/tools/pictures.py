#!/usr/bin/env python3
"""Draws the pictures of docs/architecture.md, as Mermaid text: ``python3 dev.py pictures``.

The packages come from their pyproject.toml files, the states of a node and of a heartbeat lease from their tables
`TRANSITIONS`. What is asked for in a round is the list `ROUND`, and a test compares that with what the coroutines ask
for. A picture stands in the page where a block ``mermaid`` names it in its first line: ``%% states``.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from rdzv.engine import lease_observer, registration
from rdzv.engine.effects import Effect, KeepAlive, OpenLease, Put, ReadAll, Wait

ROOT: Final = Path(__file__).resolve().parents[len(Path("dev/tools").parts)]
PAGE: Final = ROOT / "docs" / "architecture.md"


def _text(*lines: str) -> str:
    """Lines of a label, with what Mermaid or HTML would read as syntax written as numbers."""
    return "<br/>".join(re.sub(r'[#;<>"]', lambda sign: f"#{ord(sign[0])};", line) for line in lines if line)


class Package(NamedTuple):
    """A package of the workspace: what it needs of the others there (`needs`), and of other projects."""

    name: str
    folder: str
    needs: tuple[str, ...]
    others: tuple[str, ...]


def read_packages(root: Path = ROOT) -> list[Package]:
    """The packages of the workspace."""
    files = chain.from_iterable(root.glob(f"{folder}/pyproject.toml") for folder in ("*", "plugins/*", "launchers/*"))
    projects = [(path.relative_to(root).parts[0], tomllib.loads(path.read_text())["project"]) for path in sorted(files)]
    names = {project["name"] for _, project in projects}
    packages = []
    for folder, project in projects:
        needs = sorted(re.split(r"[^\w.-]", need)[0] for need in project.get("dependencies", ()))
        inside, others = (tuple(need for need in needs if (need in names) is known) for known in (True, False))
        packages.append(Package(project["name"], folder, inside, others))
    return packages


def draw_packages(packages: Sequence[Package]) -> str:
    """The packages, with an arrow to each that one may import. Those of a folder on the same arrows share a box."""
    boxes: dict[tuple[str, ...], list[Package]] = {}
    for package in packages:
        used_by = (other.name for other in packages if package.name in other.needs)
        boxes.setdefault((package.folder, *package.needs, "by", *used_by), []).append(package)
    lines = ["flowchart TD", "    accTitle: The packages, and who may import whom"]
    for (folder, *_), inside in boxes.items():
        names = [" + ".join([package.name, *package.others]) for package in inside]
        lines.append(f'    {inside[0].name}["{_text(f"{folder}/", *names)}"]')
    tops = [package for inside in boxes.values() for package in inside[:1]]
    lines += [f"    {package.name} --> {top.name}" for package in tops for top in tops if top.name in package.needs]
    return "\n".join(lines)


class Transition(Protocol):
    """One line of a table of states: what leads from one to another, and by which effects, if by any."""

    @property
    def source(self) -> Enum: ...
    @property
    def trigger(self) -> Enum: ...
    @property
    def target(self) -> Enum: ...
    @property
    def effects(self) -> str: ...


def draw_states(title: str, transitions: Sequence[Transition]) -> str:
    """A table of states. What leads from three or more of them to the same one is one arrow, from a box for them."""
    states = type(transitions[0].source)
    lines = ["stateDiagram-v2", f"    accTitle: {title}"]
    lines += [f"    {state.name}: {_text(said)}" for state in states for said in (state.name, state.value)]
    groups: dict[tuple[Enum, str, Enum], list[Enum]] = {}
    for line in transitions:
        groups.setdefault((line.trigger, line.effects, line.target), []).append(line.source)
    for number, ((trigger, effects, target), sources) in enumerate(groups.items()):
        names = [source.name for source in sources]
        if len(sources) > 2:
            among = "any other state" if {*sources} == {*states} - {target} else " or ".join(names)
            names = [f"any_of_{number}"]
            lines.append(f"    {names[0]}: {among}")
        lines += [f"    {name} --> {target.name}: {_text(trigger.value, effects)}" for name in names]
    return "\n".join(lines)


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
    Step(NODE, SERVICE, OpenLease, "", "meanwhile, for the time to live"),
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
    Step(LEADER, SERVICE, ReadAll, "nodes", "then, or if that was a while ago: is it still so?", rare=True),
    Step(LEADER, SERVICE, Put, "control/state", "the world, if the token still matches"),
    Step(SERVICE, NODE, Wait, "control", "the world"),
    Step(NODE, NODE, None, "", "I am rank 2 of 4"),
    Step(NODE, SERVICE, KeepAlive, "", "once an interval, as long as it lives"),
)


def draw_round(steps: Iterable[Step] = ROUND) -> str:
    """One round as a sequence."""
    short = dict(zip(ACTORS, "ABC", strict=True))
    lines = ["sequenceDiagram", "    accTitle: One round"]
    lines += [f"    participant {short[actor]} as {actor}" for actor in ACTORS]
    for step in steps:
        asked = f"{step.effect.__name__} {step.key}".strip() if step.effect else step.key
        arrow = f"    {short[step.source]}->>{short[step.target]}:"
        if step.source == step.target:
            lines.append(f"    Note over {short[step.source]}: {_text(asked, step.words)}")
        elif step.rare:
            lines += [f"    opt {_text(step.words)}", f"    {arrow} {_text(asked)}", "    end"]
        else:
            lines.append(f"{arrow} {_text(f'{asked} answers' if step.source == SERVICE else asked, step.words)}")
    return "\n".join(lines)


def draw() -> dict[str, str]:
    """Every picture, by its name."""
    return {
        "packages": draw_packages(read_packages()),
        "states": draw_states("The states of a node", registration.TRANSITIONS),
        "lease": draw_states("What an observer knows of a heartbeat lease", lease_observer.TRANSITIONS),
        "round": draw_round(),
    }


def with_pictures(page: str) -> str:
    """A page with its pictures drawn anew."""
    pictures = draw()
    block = re.compile(r"^```mermaid\n%% (\w+)\n.*?^```$", re.MULTILINE | re.DOTALL)
    return block.sub(lambda found: f"```mermaid\n%% {found[1]}\n{pictures[found[1]]}\n```", page)


if __name__ == "__main__":
    PAGE.write_text(with_pictures(PAGE.read_text()))
