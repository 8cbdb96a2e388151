"""The pictures of the architecture show what the code says: the packages, a node's states, the calls of a round."""

import re
import tomllib
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rdzv.engine import leader, lease_observer
from rdzv.engine.effects import Call, Effect, KeepAlive, Wait, WaitForChange
from rdzv.engine.join import join
from rdzv.engine.keep_alive import keep_alive_loop
from rdzv.engine.records import NodeRecord, State
from rdzv.engine.registration import TRANSITIONS, NodeState
from rdzv.engine.watch import watch_loop

from engine.tests.coroutines import Harness, Stepper

ROOT = Path(__file__).parents[2]
TOOL = "pictures"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PICTURES = dict(re.findall(r"^```mermaid\n%% (\w+)\n(.*?)^```$", PAGE, re.M | re.S))


def words(picture: str) -> str:
    """What can be read in a picture."""
    return re.sub(r"#(\d+);", lambda code: chr(int(code[1])), picture.replace("<br/>", "\n"))


def transitions_of(picture: str) -> set[tuple[str, str, str, str]]:
    """The lines of a table that a picture shows: source, what happens, effects, target."""
    states = set(re.findall(r"^ +(\w+): \1$", picture, re.M))
    boxes = dict(re.findall(r"^ +(any_of_\d+): (.*)$", picture, re.M))
    arrows = re.findall(r"^ +(\w+) --> (\w+): ([^\n<]*)(?:<br/>(.*))?$", picture, re.M)
    lines = set()
    for source, target, trigger, effects in arrows:
        among = boxes.get(source, source)
        sources = states - {target} if among == "any other state" else set(among.split(" or "))
        lines |= {(one, trigger, effects, target) for one in sources}
    return lines


def lines_of(transitions: Iterable[Any]) -> set[tuple[str, str, str, str]]:
    """Lines of the table, as the picture shows them."""
    return {(line.source.name, line.trigger.value, line.effects, line.target.name) for line in transitions}


def test_pictures_are_those_that_the_tool_draws(tool: Any) -> None:
    assert set(PICTURES) == set(tool.draw())
    assert tool.with_pictures(PAGE) == PAGE, "python3 dev.py pictures"


@pytest.mark.parametrize("name", ["packages", "states", "lease", "round"])
def test_another_picture_in_the_page_is_written_over(tool: Any, name: str) -> None:
    assert tool.with_pictures(PAGE.replace(PICTURES[name], "flowchart TD\n    A --> B\n")) == PAGE


@pytest.mark.parametrize(
    ("name", "states", "transitions"),
    [("states", NodeState, TRANSITIONS), ("lease", lease_observer.LeaseState, lease_observer.TRANSITIONS)],
)
def test_every_state_and_transition_is_in_the_picture(
    name: str, states: type[Enum], transitions: Iterable[Any]
) -> None:
    picture = PICTURES[name]
    assert transitions_of(picture) == lines_of(transitions)
    assert [state.name for state in states if f"    {state.name}: {state.value}\n" not in words(picture)] == []


@pytest.mark.parametrize("missing", TRANSITIONS, ids=lambda line: f"{line.source.name} {line.trigger.name}")
def test_a_missing_transition_is_noticed(tool: Any, missing: Any) -> None:
    others = [line for line in TRANSITIONS if line != missing]
    assert transitions_of(tool.draw_states("Others", others)) == lines_of(others)


def test_any_table_of_states_can_be_drawn(tool: Any) -> None:
    class Light(Enum):
        RED = "stop; <wait>"
        AMBER = "wait"
        GREEN = "go"
        DARK = "take care"

    class Change(Enum):
        SWITCHED = "it is switched"
        BROKEN = "it breaks"
        REPAIRED = "it is repaired"

    # All states but one, all states, and all of some lead to the same one.
    lines = [(Light.RED, Change.SWITCHED, Light.GREEN), *((light, Change.BROKEN, Light.DARK) for light in Light)]
    lines += [(light, Change.REPAIRED, Light.RED) for light in (Light.AMBER, Light.GREEN, Light.DARK)]
    lines += [(light, Change.SWITCHED, Light.RED) for light in (Light.RED, Light.AMBER, Light.GREEN)]
    table = [SimpleNamespace(source=source, trigger=by, target=to, effects="") for source, by, to in lines]
    picture = tool.draw_states("A light", table)
    assert transitions_of(picture) == lines_of(table)
    assert "RED: stop#59; #60;wait#62;\n" in picture


def test_packages_have_arrows_to_what_they_declare() -> None:
    picture = PICTURES["packages"]
    boxes = {box: label.split("<br/>")[1:] for box, label in re.findall(r'^ +([\w-]+)\["(.*)"\]$', picture, re.M)}
    arrows = re.findall(r"^ +([\w-]+) --> ([\w-]+)$", picture, re.M)
    drawn = {}
    for box, inside in boxes.items():
        for package in inside:
            name, *others = package.split(" + ")
            needs = [need.split(" + ")[0] for source, target in arrows if source == box for need in boxes[target]]
            drawn[name] = {*others, *needs}
    files = [path for path in ROOT.glob("**/pyproject.toml") if (path.parent / "src").is_dir()]
    projects = [tomllib.loads(path.read_text())["project"] for path in files if "examples" not in path.parts]
    assert drawn == {
        project["name"]: {need.partition(">")[0] for need in project["dependencies"]} for project in projects
    }


def asked(effects: list[Effect]) -> list[str]:
    """What effects ask the service for, as the picture names it."""
    calls = [effect for effect in effects if isinstance(effect, (Call, Wait))]
    keys = [getattr(call, "key", getattr(call, "prefix", "")) for call in calls]
    return [f"{type(call).__name__} {key}".strip() for call, key in zip(calls, keys, strict=True)]


def steps_of(tool: Any, actor: str, **names: object) -> list[str]:
    """What an actor asks the service for in the picture of a round."""
    steps = [step for step in tool.ROUND if step.effect and actor in (step.source, step.target)]
    keys = [
        step.key.replace("<id>", str(names.get("id"))).replace("<round>", str(names.get("round"))) for step in steps
    ]
    found = zip(steps, keys, strict=True)
    return [f"{step.effect.__name__} {key}".strip() for step, key in found if not step.rare or "round" in names]


def write(harness: Harness, names: str, last_round: int = 0) -> None:
    """Let the service hold the records of some nodes."""
    for name in names:
        harness.put(f"nodes/0/{name}", NodeRecord(name, 0, last_round, 2, 4, f"{name}.host", 1).encode())


def lead(harness: Harness) -> Stepper[None]:
    """A leader that has done what it can, and waits for the nodes."""
    node = harness.registered("a")
    harness.lead(node)
    leads = harness.stepper(leader.lead(node, node.candidacy.term))
    leads.to(Wait)
    return leads


def until_published(leads: Stepper[None]) -> list[str]:
    """What a leader asks the service for, from its last wait on, until it has published a world."""
    leads.to_write("control/state")
    leads.go()
    last = max(number for number, effect in enumerate(leads.taken) if isinstance(effect, Wait))
    return asked(leads.taken[last:])


def test_a_round_is_formed_as_in_the_picture(tool: Any) -> None:
    harness = Harness()
    leads = lead(harness)
    write(harness, "bd")
    node = harness.node("c")
    node.run.snapshot = None
    watches = harness.stepper(watch_loop(node))
    watches.to(Wait)
    joins = harness.stepper(join(node, "c.host", 1, harness.now + 600))
    joins.to(WaitForChange)
    assert until_published(leads) == steps_of(tool, tool.LEADER)
    looked = len(watches.taken)
    watches.go()
    joins.send(None)
    state, rank = joins.end()
    assert f"I am rank {rank} of {state.size}" in words(PICTURES["round"])
    keeps = harness.stepper(keep_alive_loop(node))
    in_order = [*watches.taken[:looked], *joins.taken, *watches.taken[looked:], keeps.to(KeepAlive)]
    assert asked(in_order) == steps_of(tool, tool.NODE, id="c")


def test_a_member_is_evicted_as_in_the_picture(tool: Any) -> None:
    harness = Harness()
    harness.publish(State(0, 1, ("a", "b", "c"), "a.host", 1, 2, 4))
    write(harness, "b")
    leads = lead(harness)
    # Both come back for another round, and c does not.
    write(harness, "ab", last_round=1)
    assert until_published(leads) == steps_of(tool, tool.LEADER, round=2)
