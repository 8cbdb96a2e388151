"""Who is missing of those that are expected, by all names that a platform and a node may have for one machine."""

import pytest

from rdzv.engine.missing import missing, missing_in_attempt
from rdzv.engine.notices import name_in_id
from rdzv.engine.records import NodeRecord, State

DOMAIN = ".cluster.internal.example.com"


def node(name: str, address: str = "", attempt: int = 0) -> NodeRecord:
    """The record of a node of that name."""
    return NodeRecord(f"{name_in_id(name)}.4c", attempt, 0, 1, 4, address, 1)


@pytest.mark.parametrize(
    ("expected", "here", "away"),
    [
        # As Slurm lists them: by the names that its nodes have.
        (("n1", "n2", "n3"), [node("n1")], ("n2", "n3")),
        (("n1", "n2"), [node("n2"), node("n1")], ()),
        # Two nodes of one machine, and a machine with a line for each slot.
        (("n1", "n1", "n2", "n2"), [node("n1"), node("n1")], ("n2",)),
        # With a domain, and without.
        ((f"n1{DOMAIN}", f"n2{DOMAIN}"), [node("n1")], (f"n2{DOMAIN}",)),
        (("n1", "n2"), [node(f"n1{DOMAIN}")], ("n2",)),
        ((f"node-0001{DOMAIN}", f"node-0002{DOMAIN}"), [node(f"node-0001{DOMAIN}")], (f"node-0002{DOMAIN}",)),
        # By address, as SkyPilot.
        (("10.0.0.1", "10.0.0.2"), [node("pod-a", "10.0.0.1")], ("10.0.0.2",)),
        (("10.0.0.1", "11.0.0.1"), [node("10.0.0.3")], ()),
        (("fd00::1", "fd00::2"), [node("pod-a", "fd00::2")], ("fd00::1",)),
        # None has come.
        (("n1",), [], ("n1",)),
        # Nothing is known.
        ((), [node("n1")], ()),
        ((), [], ()),
    ],
)
def test_those_that_have_not_come_are_named(
    expected: tuple[str, ...], here: list[NodeRecord], away: tuple[str, ...]
) -> None:
    assert missing(expected, here) == away


def test_where_a_node_has_a_name_of_its_own_none_is_named() -> None:
    assert missing(("n1", "n2", "n3"), [node("n1"), node("trainer")]) == ()


def test_a_first_label_that_two_have_names_none() -> None:
    assert missing(("gpu0.rack1", "gpu0.rack2"), [node("gpu0")]) == ()
    assert missing(("gpu0.rack1", "gpu0.rack2"), [node("gpu0.rack2")]) == ("gpu0.rack1",)
    # The whole name comes before it.
    assert missing(("gpu0", "gpu0.rack2"), [node("gpu0.rack2")]) == ("gpu0",)


def test_who_is_named_anyway_is_not_named_again() -> None:
    assert missing(("n1", "n2", "n3"), [node("n1")], ["n2.07", "stranger.08"]) == ("n3",)


def test_an_attempt_expects_what_the_platform_lists_or_else_the_world_before() -> None:
    before = State(0, 1, ("n1.4c", "n2.4c", "n3.4c"), "n1", 1, 1, 4)
    live = [node("n1"), node("n2", attempt=1)]
    # That a member is gone is said anyway in its own attempt, and is no excuse in the next.
    assert missing_in_attempt(0, before, (), live, ["n2.4c"]) == ("n3",)
    assert missing_in_attempt(1, before, (), live, ["n3.4c"]) == ("n1", "n3")
    assert missing_in_attempt(1, before, ("n2", "n4"), live, ["n4.4c"]) == ("n4",)


def test_what_a_platform_lists_fits_into_a_record() -> None:
    assert missing(("a b/c\n", "n" * 300), [], ()) == ("a?b?c?", "n" * 255)
