"""The checker finds nothing in a good history, and names what is wrong in a bad one."""

from typing import Any

import pytest

from rdzv_conformance.chaos import History, Record, check, is_settled
from rdzv_conformance.chaos.history import EventLog, What, tell

LOW, HIGH = 2, 3


def at(moment: float, who: str, what: What, **facts: Any) -> Record:
    return Record(moment, who, what, facts)


def got(moment: float, who: str, number: int, *names: str, **other: Any) -> Record:
    """`who` returns from a round with the nodes of these agents."""
    nodes = [f"{name}.1" for name in names]
    facts = {"rank": names.index(who) if who in names else 0, "size": len(nodes), "nodes": nodes, "address": "a:1"}
    return at(moment, who, "returns", round=number, **{**facts, "offers": "a:1", **other})


def trusts(moment: float, who: str, number: int, until: float) -> Record:
    return at(moment, who, "trusts", round=number, size=2, until=until)


def closed(moment: float, who: str, by: str = "one.1", reason: str = "enough", error: str = "") -> Record:
    if error:
        return at(moment, who, "refused", error=error, text="it is closed", by=by, reason=reason)
    return at(moment, who, "hears", by=by, reason=reason)


GOOD = [
    at(0, "one", "starts", attempt=0),
    at(0, "two", "starts", attempt=0),
    at(0, "three", "starts", attempt=0),
    at(1, "one", "joins"),
    at(1, "two", "joins"),
    got(2, "one", 1, "one", "two"),
    got(2, "two", 1, "one", "two"),
    at(2.1, "one", "shares", round=1, size=2, mark="one.1"),
    at(2.2, "two", "shares", round=1, size=2, mark="one.1"),
    trusts(3, "one", 1, until=6.0),
    trusts(3, "two", 1, until=6.0),
    # Two dies, and is given up when its lease is over.
    at(4, "two", "is killed"),
    at(5, "one", "joins"),
    at(5, "three", "joins"),
    got(6.5, "one", 2, "one", "three"),
    got(6.5, "three", 2, "one", "three"),
    trusts(6.6, "one", 2, until=9.0),
    trusts(6.6, "three", 2, until=9.0),
]
CLOSING = [
    at(7, "one", "closes", reason="enough"),
    at(7.1, "one", "has closed", reason="enough"),
    closed(7.2, "one"),
    closed(7.3, "three", error="RendezvousClosedError"),
]

BAD: dict[str, tuple[int, str, list[Record]]] = {
    "other nodes": (1, "as the nodes of round 3", [
        got(9.5, "one", 3, "one", "three"), got(9.5, "three", 3, "three", "one"),
    ]),
    "another address": (1, "as the address of round 3", [
        got(9.5, "one", 3, "one", "three"), got(9.5, "three", 3, "one", "three", address="b:1"),
    ]),
    "an address of before": (1, "one is rank 0 of round 3 at b:2, and got a:1", [
        got(9.5, "one", 3, "one", "three", offers="b:2"),
    ]),
    "a rank twice": (1, "is rank 0 of 2", [got(9.5, "three", 3, "one", "three", rank=0)]),
    "a rank beyond": (1, "is rank 2 of 2", [got(9.5, "three", 3, "one", "three", rank=2)]),
    "a wrong size": (1, "of 3 in round 3", [got(9.5, "three", 3, "one", "three", size=3)]),
    "not one of them": (1, "two is rank 0 of 2", [got(9.5, "two", 3, "one", "three")]),
    "a round twice": (1, "got round 2 after round 2", [got(8, "three", 2, "one", "three")]),
    "another store": (1, "do not share one store in round 2", [
        at(8, "one", "shares", round=2, size=2, mark="one.1"),
        at(8, "three", "shares", round=2, size=2, mark="three.1"),
    ]),
    "a world beside another": (2, "one is in round 2, its lease lives for another 1.00 s, while round 3 exists", [
        at(7, "three", "joins"), at(7, "two", "joins"), got(8, "three", 3, "three", "two"),
    ]),
    "a world beside a member that stands still": (2, "three is in round 2", [
        at(7, "three", "stands still"), at(7, "one", "joins"), got(8.9, "one", 3, "one", "two"),
    ]),
    "trust in a world that is over": (2, "three is in round 2", [
        at(6.7, "one", "joins"), got(9.5, "one", 4, "one", "two"), trusts(10, "three", 2, until=12.0),
    ]),
    "a small world": (3, "for 2 to 3 nodes", [got(9.5, "one", 3, "one")]),
    "a large world": (3, "for 2 to 3 nodes", [got(9.5, "one", 3, "one", "two", "three", "four")]),
    "a node twice": (3, "for 2 to 3 nodes", [got(9.5, "one", 3, "one", "two", "two")]),
    "no progress": (4, "no world", [at(20, "the run", "unsettled", text="no world")]),
    "a world of a closed run": (6, "got round 3 of a run that was closed 1.900 s before", [
        *CLOSING, at(9, "three", "joins"), got(9.5, "three", 3, "three", "two"),
    ]),
    "a second reason": (6, "closed for two reasons: one hears 'enough' and three hears 'other'", [
        *CLOSING[:3], at(7.2, "three", "closes", reason="other"), closed(7.3, "three", by="three.1", reason="other"),
    ]),
    "closed by no node": (7, "no node has closed the run, but one hears that it is closed by 'three.1'", [
        closed(8, "one", by="three.1"),
    ]),
    "superseded by no node": (7, "no node has closed the run", [
        closed(8, "one", by="", reason="superseded by attempt 1"),
    ]),
    "a world beside a member that was refused": (10, "three is in round 2, may come back from a refusal for", [
        at(13, "one", "joins"), at(12, "the run", "permits", since=8.0, until=15.0), got(14, "one", 3, "one", "two"),
    ]),
    "an error": (7, "three gets an error for no fault of its own: RendezvousTimeoutError: no node came", [
        at(8, "three", "refused", error="RendezvousTimeoutError", text="no node came", by=None, reason=None),
    ]),
    "a crash": (0, "three broke: KeyError", [at(8, "three", "broke", text="KeyError")]),
}  # fmt: skip


@pytest.mark.parametrize("more", [[], CLOSING], ids=["open", "closed"])
def test_nothing_is_wrong_with_a_good_history(more: list[Record]) -> None:
    assert check([*GOOD, *more], LOW, HIGH) == []


def test_who_leaves_or_is_superseded_has_reason_to_stop() -> None:
    history = [
        *GOOD,
        at(7, "one", "leaves"),
        at(7.1, "one", "refused", error="RendezvousClosedError", text="it has left", by=None, reason=None),
        at(8, "four", "starts", attempt=1),
        closed(8.1, "three", by="", reason="superseded by attempt 1"),
    ]
    assert check(history, LOW, HIGH) == []


@pytest.mark.parametrize(("number", "words", "more"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_named(number: int, words: str, more: list[Record]) -> None:
    violations = check([*GOOD, *more], LOW, HIGH)
    assert [violation.number for violation in violations] == [number], violations
    assert words in str(violations[0])
    assert str(violations[0]).startswith(f"invariant {number}: ")


@pytest.mark.parametrize(("since", "joins"), [(9.5, 15.5), (8.0, 13.5)])
def test_who_was_away_before_a_refusal_or_gives_up_its_round_is_not_waited_for(since: float, joins: float) -> None:
    refused = [
        at(12, "the run", "permits", since=since, until=15.0),
        at(13, "one", "joins"),
        at(joins, "three", "joins"),
        got(14, "one", 3, "one", "two"),
    ]
    assert check([*GOOD, *refused], LOW, HIGH) == []


def test_who_went_back_in_time_is_not_in_its_round() -> None:
    back = [at(7, "one", "joins"), at(7, "three", "leaves"), got(7.5, "one", 3, "one", "two")]
    assert check([*GOOD, *back], LOW, HIGH) == []


def test_the_order_of_files_does_not_matter() -> None:
    for _, _, more in BAD.values():
        assert check([*reversed(more), *reversed(GOOD)], LOW, HIGH)


def test_settled_is_one_world_of_all_that_it_has_room_for() -> None:
    last = {record.who: record for record in GOOD}
    assert is_settled(last, ["one", "three"], HIGH)
    assert not is_settled(last, ["one"], HIGH), "the world has a member that does not live"
    assert not is_settled(last, ["one", "two", "three"], HIGH), "one is not in it"
    assert not is_settled(last, ["one", "three", "four"], HIGH), "one has said nothing yet"
    waits = {**last, "four": at(9, "four", "joins")}
    assert is_settled(waits, ["one", "three", "four"], 2), "there is no room for it"
    assert not is_settled(waits, ["one", "three", "four"], HIGH), "there would be room for it"
    assert not is_settled({**last, "one": trusts(9, "one", 1, 9.0)}, ["one", "three"], HIGH), "two worlds"


def test_history_is_what_was_written(tmp_path: Any) -> None:
    history = History(tmp_path)
    one, two = (EventLog(tmp_path / f"{who}.jsonl", who) for who in ("one", "two"))
    one.write("joins", at=2.0)
    two.write("joins", at=1.0)
    with (tmp_path / "two.jsonl").open("ab") as cut_short:
        cut_short.write(b'{"at": 3.0, "who": "tw')
    history.refresh()
    assert history.records == [at(2.0, "one", "joins"), at(1.0, "two", "joins")]
    one.write("returns", at=4.0, round=1, size=2)
    history.refresh()
    assert history.last["one"] == at(4.0, "one", "returns", round=1, size=2)
    assert history.rounds == {1}
    assert tell(history.records, since=1.0).splitlines()[0].split() == ["0.000", "two", "joins"]
    one.close()
    two.close()


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"at": 1, "who": "one", "what": "dances"}', b"nothing"])
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"is (no|a) record|Expecting"):
        Record.from_json(line)
