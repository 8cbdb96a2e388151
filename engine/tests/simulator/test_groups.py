"""Many nodes that take part by groups are all in one world, or wait for their group."""

from typing import Any

import pytest

from rdzv.admission import Limits

from . import Violation, groups


def test_all_whole_groups_are_in_one_world_and_none_is_forgotten() -> None:
    gathered = groups.gather_groups()
    (first, formed), (last, _) = gathered.worlds
    # All but the group that is never whole, and the one that has lost a node: those that are late extend the last call.
    assert first == 34 * groups.SIZE
    assert formed < 65
    # A third one has lost a node when the world was about to form.
    assert last == 33 * groups.SIZE
    assert gathered.waiting == 3 * (groups.SIZE - 1)
    # A time to live, a last call, and what it takes to notice and to publish.
    assert gathered.seconds < 15 + 30 + 5
    # Two rounds, each within the budget of invariant 11.
    assert gathered.calls < 8
    assert gathered.waits < 35


def test_forgotten_group_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Limits.choose

    def choose_too_few(limits: Limits, *given: Any) -> list[Any]:
        chosen = choose(limits, *given)
        return chosen[: -groups.SIZE] if len(chosen) > 4 * groups.SIZE else chosen

    monkeypatch.setattr(Limits, "choose", choose_too_few)
    monkeypatch.setattr(groups, "GROUPS", 10)
    monkeypatch.setattr(groups, "_ENOUGH", 4)
    with pytest.raises(Violation, match=r"n\d+, n\d+, .*: forgotten, although their groups are whole"):
        groups.gather_groups()
