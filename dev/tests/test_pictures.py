"""The pictures of the architecture show what is there: the packages, a node's states, the calls of a round."""

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rdzv.engine import leader
from rdzv.engine.effects import Call, Effect, KeepAlive, Wait, WaitForChange
from rdzv.engine.join import join
from rdzv.engine.keep_alive import keep_alive_loop
from rdzv.engine.records import NodeRecord, State
from rdzv.engine.registration import TRANSITIONS, NodeState, Transition
from rdzv.engine.watch import watch_loop

from engine.tests.coroutines import Harness, Stepper

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
PICTURES = {path.stem: path for path in sorted((ROOT / "docs" / "architecture").glob("*.svg"))}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev/tools/pictures.py."""
    monkeypatch.syspath_prepend(ROOT / "dev" / "tools")
    return import_module("pictures")


def shown(svg: str, name: str) -> Iterator[str]:
    """What the elements of a picture stand for."""
    for element in ElementTree.fromstring(svg).iter():
        if (value := element.get(f"data-{name}")) is not None:
            yield value


def words(svg: str) -> str:
    """What can be read in a picture."""
    return " ".join(element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text"))


def lines_of(*transitions: Transition) -> set[str]:
    """Lines of the table, as the picture names them."""
    return {f"{line.source.name} {line.trigger.name} {line.target.name}" for line in transitions}


def arrows_of(svg: str) -> set[str]:
    """The lines of the table that a picture shows."""
    return {line for arrow in shown(svg, "transitions") for line in arrow.split("; ")}


def test_pictures_are_those_that_the_tool_draws(tool: Any) -> None:
    drawn = tool.draw()
    assert set(drawn) == set(PICTURES.values())
    assert [path.name for path, svg in drawn.items() if path.read_text() != svg] == [], "python3 dev.py pictures"


@pytest.mark.parametrize("name", ["packages", "states", "round"])
def test_pictures_stand_in_the_page_and_know_the_dark(name: str) -> None:
    assert f"](architecture/{name}.svg)" in (ROOT / "docs" / "architecture.md").read_text()
    assert "@media (prefers-color-scheme:dark)" in PICTURES[name].read_text()


def test_every_transition_is_in_the_picture() -> None:
    picture = PICTURES["states"].read_text()
    assert arrows_of(picture) == lines_of(*TRANSITIONS)
    assert sorted(shown(picture, "state")) == sorted(state.name for state in NodeState)
    readable = words(picture)
    said = {text for line in TRANSITIONS for text in (line.trigger.value, line.effects)} | {s.value for s in NodeState}
    assert [text for text in said if text not in readable] == []


@pytest.mark.parametrize("missing", TRANSITIONS, ids=lambda line: " ".join(lines_of(line)))
def test_a_missing_transition_is_noticed(tool: Any, missing: Transition) -> None:
    others = [line for line in TRANSITIONS if line != missing]
    # Or there is no picture: the frame around many states, or the arrow, is for others.
    with suppress(ValueError, KeyError):
        svg = tool.draw_states(others).svg()
        assert arrows_of(svg) == lines_of(*others)
        assert svg != PICTURES["states"].read_text()


def test_packages_stand_on_what_they_declare(tool: Any) -> None:
    picture = tool.draw_packages(tool.read_packages()).svg()
    drawn = dict(zip(shown(picture, "package"), shown(picture, "imports"), strict=True))
    files = [path for path in ROOT.glob("**/pyproject.toml") if (path.parent / "src").is_dir()]
    projects = [tomllib.loads(path.read_text())["project"] for path in files if "examples" not in path.parts]
    assert drawn == {
        project["name"]: " ".join(
            sorted(need.partition(">")[0] for need in project["dependencies"] if need[:4] == "rdzv")
        )
        for project in projects
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
    leads = harness.stepper(leader.lead(node, node.term))
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
    assert f"I am rank {rank} of {state.size}" in words(PICTURES["round"].read_text())
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
