"""What is written down comes back as it was, and nothing else is believed."""

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from rdzv_core.backend import MAX_PAYLOAD, Entry, Snapshot
from rdzv_core.envelope import Envelope, OtherVersionError
from rdzv_core.errors import RendezvousStateError

from rdzv.admission import Policy
from rdzv.engine.client import MOST_IGNORED, DecodedSnapshot, VersionedValue
from rdzv.engine.codec import decode
from rdzv.engine.notices import Failure, Verdict
from rdzv.engine.records import (
    PENDING,
    Closed,
    Departure,
    LeaderRecord,
    NodeRecord,
    Page,
    Phase,
    RunStatus,
    State,
    number_of,
    numbered,
    of_another_version,
    read_nodes,
    read_record,
)
from rdzv.outcome import Ending, Outcome

NODE = NodeRecord("a", 1, 2, 3, 4, "a.host", 5, {"rack": "7", "zone": "b"})
STATE = State(0, 1, ("a", "b"), "a.host", 0, 2, 4)
CLOSED = State(0, 1, (), "", 0, 2, 4, Closed("a", "done", True))
NOTICE = RunStatus(1, Phase.RUNNING, 2, 0, (Departure("c", 2, False, "dead"), Departure("d", 3, True, "drained")))


@pytest.mark.parametrize(
    "record",
    [NODE, NodeRecord("a", 0, 0, 1, 1, "", 0, left="tired"), STATE, CLOSED, NOTICE, LeaderRecord("a", 0, 2, 4)],
    ids=["node", "node that left", "state", "closed state", "status", "leadership"],
)
def test_record_comes_back_as_it_was(record: Any) -> None:
    assert decode(type(record), record.encode()) == record


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (STATE, "schema", 1),
        (STATE, "schema", "2"),
        (STATE, "attempt", -1),
        (STATE, "attempt", True),
        (STATE, "attempt", 1.0),
        (STATE, "attempt", "1"),
        (STATE, "address", 1),
        (STATE, "address", None),
        (STATE, "world", "ab"),
        (STATE, "world", ["a", 1]),
        (STATE, "closed", "yes"),
        (STATE, "closed", {"by": "a", "reason": "done", "done": 1}),
        (NODE, "labels", ["rack"]),
        (NODE, "labels", {"rack": "7", "zone": 1}),
        (NODE, "left", 0),
        (NOTICE, "phase", 1),
        (NOTICE, "phase", "asleep"),
        (NOTICE, "departures", {}),
        (NOTICE, "departures", ["c"]),
    ],
)
def test_field_of_another_type_is_refused(record: Any, field: str, value: Any) -> None:
    fields = json.loads(record.encode())
    assert field in fields
    with pytest.raises(RendezvousStateError, match=field):
        decode(type(record), json.dumps(fields | {field: value}).encode())


def test_a_phase_is_written_as_users_read_it() -> None:
    assert json.loads(NOTICE.encode())["phase"] == "running"


@pytest.mark.parametrize(
    ("record", "later"),
    [
        (replace(NODE, outcome=Outcome(Ending.HUNG, 20, 2.5, spent=True)), ("outcome",)),
        (replace(NODE, version="0.2.0", policy=Policy(grow_delay=2.5)), ("version", "policy")),
        (replace(STATE, policy=Policy()), ("policy",)),
        (LeaderRecord("a", 0, 2, 4, policy=Policy()), ("policy",)),
        (Failure("a", "exit", False, 1, Verdict.EXPLAINED, "lost"), ("verdict", "because")),
    ],
)
def test_what_an_older_version_did_not_write_is_none(record: Any, later: tuple[str, ...]) -> None:
    assert decode(type(record), record.encode()) == record
    fields = json.loads(record.encode())
    older = {name: value for name, value in fields.items() if name not in later}
    assert decode(type(record), json.dumps(older).encode()) == replace(record, **dict.fromkeys(later))
    with pytest.raises(RendezvousStateError):
        decode(type(record), json.dumps({**fields, later[0]: ["nonsense"]}).encode())


@pytest.mark.parametrize(
    "field", [field for field in json.loads(NODE.encode()) if field not in ("outcome", "policy", "version")]
)
def test_missing_field_is_refused(field: str) -> None:
    fields = json.loads(NODE.encode())
    del fields[field]
    with pytest.raises(RendezvousStateError, match=field):
        decode(NodeRecord, json.dumps(fields).encode())


def test_another_schema_is_named_whatever_its_fields_are() -> None:
    with pytest.raises(OtherVersionError) as refused:
        decode(NodeRecord, b'{"schema":4,"name":"a"}')
    assert str(refused.value) == (
        "The node record in the service was written by another version of rdzv (schema 4, this one reads 3). Use "
        "that version for this run, or another run id; once its nodes have ended, `rdzv close --purge` removes it."
    )


def test_labels_may_be_any_mapping() -> None:
    labels = MappingProxyType({"rack": "7"})
    assert decode(NodeRecord, replace(NODE, labels=labels).encode()).labels == {"rack": "7"}


def test_the_order_of_arrival_is_the_services_and_is_not_written() -> None:
    written = replace(NODE, order=7).encode()
    assert "order" not in json.loads(written)
    assert decode(NodeRecord, written).order == 0


@pytest.mark.parametrize("payload", [b"[]", b"1", b"null", b'"schema"'])
def test_what_is_no_object_is_refused_as_such(payload: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="not an object"):
        decode(State, payload)


@pytest.mark.parametrize("ranks", ['{"a":-1}', '{"a":3,"b":-1}', '{"a":true}', '{"a":0.0,"b":1}', '{"a":"0"}'])
def test_a_page_has_numbers_and_nothing_else(ranks: str) -> None:
    with pytest.raises(RendezvousStateError, match="not all are numbers from 0 on"):
        decode(Page, f'{{"schema":3,"ranks":{ranks}}}'.encode())


@pytest.mark.parametrize("ranks", [{}, {"a": 0}, {"a": 7, "b": 0}])
def test_a_page_comes_back_as_it_was(ranks: dict[str, int]) -> None:
    assert decode(Page, Page(ranks).encode()) == Page(ranks)


@pytest.mark.parametrize("payload", [b"", b"{", b"\x80\x04\x95", b"[" * 100_000])
def test_what_is_no_json_is_refused(payload: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="cannot read"):
        decode(State, payload)


def snapshot(values: dict[str, bytes], before: DecodedSnapshot | None = None) -> DecodedSnapshot:
    """What stands under some keys; a value that was there before has the same token."""
    entries = {
        key: Entry(Envelope(value, "a", key).pack(), value, order) for order, (key, value) in enumerate(values.items())
    }
    return DecodedSnapshot(Snapshot(entries), before)


def test_a_key_that_is_absent_or_deleted_holds_no_record() -> None:
    there = Envelope.wrap(STATE.encode(), writer="a")
    assert read_record(State, VersionedValue(there, 1, 1)) == STATE
    assert read_record(State, None) is None
    assert read_record(State, VersionedValue(replace(there, deleted=True), 1, 1)) is None


def test_pending_rounds_are_found_by_their_keys() -> None:
    longest, longer = "9" * 19, "9" * 20
    names = ("3", "x", "4/5", longest, longer)
    keys = ("control/state", *(f"control/pending/{name}" for name in names), "control/status")
    found = dict(numbered(snapshot(dict.fromkeys(keys, b"")), PENDING))
    expected = {"3": 3, "x": None, "4/5": None, longest: int(longest), longer: None}
    assert found == {f"control/pending/{name}": number for name, number in expected.items()}


def test_what_cannot_be_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def read(record: bytes, no_envelope: bytes, before: DecodedSnapshot | None) -> tuple[DecodedSnapshot, list[str]]:
        caplog.clear()
        there = snapshot({"nodes/1/a": NODE.encode(), "nodes/1/b": record}).encoded.entries
        seen = DecodedSnapshot(Snapshot({**there, "nodes/1/c": Entry(no_envelope, no_envelope, 2)}), before)
        assert list(read_nodes(seen)) == list(read_nodes(seen)) == ["nodes/1/a"]
        return seen, [message.partition("':")[0] for message in caplog.messages]

    both = ["ignoring 'nodes/1/c", "ignoring 'nodes/1/b"]
    seen, logged = read(b"not ours", b"x", None)
    assert logged == both
    seen, logged = read(b"not ours", b"x", seen)
    assert logged == []
    # Who writes such values again and again does not fill the log.
    seen, logged = read(b"not ours, either", b"y", seen)
    assert logged == []
    # One that was gone for a while is another.
    gone = DecodedSnapshot(Snapshot(), seen)
    assert read(b"not ours, either", b"y", gone)[1] == both


def test_of_many_that_cannot_be_read_the_first_are_named(caplog: pytest.LogCaptureFixture) -> None:
    there = {f"nodes/1/{number:03}": b"not ours" for number in range(100)}
    seen = snapshot(there)
    assert read_nodes(seen) == {}
    assert read_nodes(DecodedSnapshot(snapshot({**there, "nodes/1/x": b"not ours"}).encoded, seen)) == {}
    assert len(caplog.messages) == MOST_IGNORED + 1
    assert caplog.messages[-1] == "ignoring further keys that cannot be read"


def test_the_name_of_what_cannot_be_read_is_logged_on_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    assert read_nodes(snapshot({"nodes/1/\x1b[2J\n" + "x" * 5000: b"not ours"})) == {}
    assert caplog.messages[0].startswith(r"ignoring 'nodes/1/\x1b[2J\nxxx")
    assert caplog.messages[0].index("': ") < 100


def test_nodes_are_read_in_order_of_arrival_and_once() -> None:
    values = {"nodes/1/b": replace(NODE, id="b").encode(), "nodes/1/a": NODE.encode(), "nodes/1/c": b"not ours"}
    first = snapshot(values)
    before = read_nodes(first)
    assert [(record.id, record.order) for _, record in before.values()] == [("b", 0), ("a", 1)]
    again = read_nodes(snapshot(values | {"nodes/1/a": replace(NODE, last_round=3).encode()}, first), before)
    assert again["nodes/1/b"][1] is before["nodes/1/b"][1]
    assert again["nodes/1/a"][1].last_round == 3


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (NODE, "last_round", str(10**19)),
        (NODE, "last_round", "9" * 20),
        (NODE, "last_round", "9" * 4301),
        (NODE, "port", "1e999"),
        (NODE, "id", r'"\ud800"'),
        (NODE, "id", '"a/b"'),
        (NODE, "id", f'"{"a" * 256}"'),
        (NODE, "address", r'"a\u0000"'),
        (NODE, "left", f'"{"a" * 32769}"'),
        (STATE, "world", r'["a b"]'),
        (STATE, "pages", '{"folder":"rounds/../..","count":1,"size":1,"first":"a"}'),
        (STATE, "pages", '{"folder":"rounds//1","count":1,"size":1,"first":"a"}'),
        (Page({"a": 0}), "ranks", r'{"\n":0}'),
    ],
)
def test_what_is_larger_than_anything_that_rdzv_writes_is_refused(record: Any, field: str, value: str) -> None:
    given = json.dumps({**json.loads(record.encode()), field: "HERE"}).replace('"HERE"', value).encode()
    with pytest.raises(RendezvousStateError):
        decode(type(record), given)


def test_a_record_that_fits_into_no_key_is_refused() -> None:
    decode(NodeRecord, NODE.encode().ljust(MAX_PAYLOAD))
    with pytest.raises(RendezvousStateError, match=f"{MAX_PAYLOAD + 1} bytes"):
        decode(NodeRecord, NODE.encode().ljust(MAX_PAYLOAD + 1))


def test_the_largest_number_and_the_longest_texts_come_back() -> None:
    record = replace(NODE, last_round=10**19 - 1, id="a" * 255, left="a" * 32768)
    assert decode(NodeRecord, record.encode()) == record


def test_a_number_in_a_key_is_written_in_one_way() -> None:
    names = ("0", "10", "01", "-1", "+1", "\u0663", "1 ", "")
    assert [number_of(name) for name in names] == [0, 10, None, None, None, None, None, None]


def test_a_record_that_stands_at_the_key_of_another_node_is_none() -> None:
    there = snapshot({"nodes/1/b": NODE.encode(), "nodes/0/a": NODE.encode(), "nodes/1/a": NODE.encode()})
    assert list(read_nodes(there)) == ["nodes/1/a"]


def test_nodes_of_another_version_are_found_by_their_keys() -> None:
    there = {"nodes/1/a": NODE.encode(), "nodes/1/b": b'{"schema":4}', "nodes/1/c": b"{}"}
    found = of_another_version(snapshot(there))
    assert list(found) == ["b"]
    assert isinstance(found["b"], OtherVersionError)


def test_a_status_tells_a_cause_in_short() -> None:
    status = RunStatus(1, Phase.RUNNING, 1, 0, (Departure("a", 0, True, "x" * 1001),))
    assert [one.cause for one in status.shortened(None).departures] == ["x" * 1000]
