"""Every decoder of what a service holds gives a value that can be written again, or the one error for what is not
rdzv's."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv.admission import AdmissionRule
from rdzv.engine import heartbeats, notices, records, register_adapter
from rdzv.engine.codec import Record, decode
from rdzv_c10d import locator, logs, values
from rdzv_core.backend import Entry, Snapshot
from rdzv_core.envelope import Envelope
from rdzv_core.errors import RendezvousStateError
from rdzv_core.keys import escape, unescape

from .hostile import SEGMENTS, damaged, fuzzed, mutated

pytestmark = pytest.mark.soak

_RULE = AdmissionRule(2, (2, 4), "rack", 2, 4)
_CLOSED = records.Closed("x.1", "why", done=False)
RECORDS: list[Record] = [
    records.State(
        0, 3, ("x.1", "y.2"), "host", 1, 1, 4, _CLOSED, records.Pages("rounds/3/world/0.ab", 2, 100, "x.1"), _RULE
    ),
    records.Page({"x.1": 0, "y.2": 64}),
    records.NodeRecord("x.1", 0, 2, 1, 4, "host", 1, {"rack": "a"}, "why", _RULE, ("y.2",)),
    records.LeaderRecord("x.1", 0, 1, 4, _RULE),
    records.RunStatus(3, records.Phase.RUNNING, 2, 1, (records.Departure("x.1", 0, True, "why"),), 1, 1, ("y.2",)),
    notices.DrainNotice(3.0, "why"),
    notices.Failure("x.1", "why", True, 0, notices.Verdict.FIRST, "as others say"),
    notices.Quarantine(1, 2, 3.0, "why"),
]


def test_every_record_is_tried() -> None:
    def kinds(kind: type[Record]) -> Iterator[type[Record]]:
        for one in kind.__subclasses__():
            yield from [one, *kinds(one)]

    public = {kind for kind in kinds(Record) if not kind.__name__.startswith("_") and "engine" in kind.__module__}
    assert {kind.__name__ for kind in public} == {type(record).__name__ for record in RECORDS}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record(record: Record) -> None:
    @fuzzed(2000)
    @given(mutated(json.loads(record.encode())))
    def try_one(payload: bytes) -> None:
        found = _read(lambda data: decode(type(record), data), payload)
        if found is not None:
            assert decode(type(record), found.encode()) == found

    try_one()


_ENVELOPE = Envelope(b"payload", "x.1", "ab", 3, ("cd", "ef"), False)


@fuzzed(3000)
@given(mutated(json.loads(_ENVELOPE.pack().partition(b"\n")[0])), st.binary(max_size=20))
def test_envelope(header: bytes, payload: bytes) -> None:
    found = _read(Envelope.unpack, header + b"\n" + payload)
    if found is not None:
        again = Envelope.wrap(b"next", writer="y.2", previous=found)
        assert _read(Envelope.unpack, again.pack()) in (again, None)


_TABLE = register_adapter._encode({"control/state": Entry(b"ab", 3, 1), "nodes/0/x.1": Entry(b"", 5, 4)})


@fuzzed(2000)
@given(mutated(json.loads(_TABLE)))
def test_table_of_a_register(table: bytes) -> None:
    _read(register_adapter._decode, Envelope.wrap(table, writer="x.1").pack())


@fuzzed(2000)
@given(damaged(b"x/1 3.000\n" + _ENVELOPE.pack()) | damaged(b"x/1 999999999.999\n"))
def test_value_on_a_lease(data: bytes) -> None:
    heartbeats.parse(Snapshot({"nodes/0/x.1": Entry(data, 1, 1)}, 1))


_PAGE = values.Page().written("control/state", b"ab", "w").written("control/leader", b"", "w").pack()


@fuzzed(2000)
@given(mutated(json.loads(_PAGE.partition(b"\n")[0])), st.binary(max_size=20))
def test_page_of_c10d(header: bytes, rest: bytes) -> None:
    found = _read(values.Page.parse, header + b"\n" + rest)
    if found is not None:
        again = found.written("control/new", b"c", "w")
        assert _read(values.Page.parse, again.pack()) in (again, None)


_FRAME = b"0123456789abcdef 17 3\nvalue"


@fuzzed(2000)
@given(damaged(_FRAME) | st.integers(1, 5000).map(lambda n: b"a 1 " + b"9" * n + b"\n"))
def test_frame_of_c10d(raw: bytes) -> None:
    found = _read(values.Frame.parse, raw)
    if found is not None:
        assert values.Frame.parse(found.then(b"next").raw).number == found.number + 1


@fuzzed(2000)
@given(damaged(b"+nodes/0/x.1 ab\n-nodes/0/x.1 ab\n+nodes/0/y.2 cd\n"))
def test_names_of_c10d(raw: bytes) -> None:
    _read(values.Names.parse, raw)


@fuzzed(2000)
@given(damaged(b"=nodes/0/a 17\nab 1 1\nvalue 1234\n@nodes/0/b 6\nab 2 1\n=nodes/0/a 6\nab 1 2\n"))
def test_log_of_c10d(raw: bytes) -> None:
    _read(logs.Reading().then, raw)


@fuzzed(1000)
@given(mutated({"id": "ab", "owner": "x"}))
def test_mark_of_c10d(raw: bytes) -> None:
    _read(locator._parse_mark, raw)


@fuzzed(1000)
@given(st.lists(st.binary(max_size=8), max_size=6).map(b"".join))
def test_file_of_c10d(data: bytes) -> None:
    locator.is_whole(data)


@fuzzed(3000)
@given(SEGMENTS | st.text(max_size=20) | st.from_regex(r"(=[0-9A-F]{2}|[a-z]){0,9}", fullmatch=True))
def test_segment_of_a_key(segment: str) -> None:
    number = records.number_of(segment)
    assert number is None or str(number) == segment
    unescape(segment)
    if segment:
        assert unescape(escape(segment)) == segment


def _read(decoder: Callable[[bytes], Any], data: bytes) -> Any:
    """What a decoder makes of bytes; None: they are not rdzv's, and it says so."""
    try:
        return decoder(data)
    except RendezvousStateError as error:
        str(error).encode()
        return None
