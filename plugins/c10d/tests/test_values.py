"""What stands in the store is rdzv's, or is said not to be."""

import pytest
from rdzv_core.errors import RendezvousStateError

from rdzv_c10d.run import _queues
from rdzv_c10d.values import Frame, Page


@pytest.mark.parametrize("number", [b"1e999", b"-1", b"NaN", b"9" * 20, b"9" * 4300, b"9" * 4301, b"null"])
def test_a_page_counts_as_far_as_a_store_does(number: bytes) -> None:
    assert (
        Page.parse(b'{"wakeup":"w","version":7,"created":18446744073709551615,"keys":{"a":["n",1,1]}}\nx')
        .entries["a"]
        .value
        == b"x"
    )
    with pytest.raises(RendezvousStateError):
        Page.parse(b'{"wakeup":' + number + b',"version":7,"created":1,"keys":{}}\n')
    with pytest.raises(RendezvousStateError):
        Page.parse(b'{"wakeup":"w","version":7,"created":' + number + b',"keys":{}}\n')
    with pytest.raises(RendezvousStateError):
        Page.parse(b'{"wakeup":"w","version":' + number + b',"created":1,"keys":{}}\n')
    with pytest.raises(RendezvousStateError):
        Page.parse(b'{"wakeup":"w","version":7,"created":1,"keys":{"a":["n",' + number + b",1]}}\nx")


@pytest.mark.parametrize("order", [b"-1", b"9" * 20, b"9" * 4301, b"1e5", b""])
def test_a_frame_counts_as_far_as_a_store_does(order: bytes) -> None:
    assert Frame.parse(b"n 7 8\nx") == Frame("n", 7, 8, b"x")
    for raw in (b"n " + order + b" 1\nx", b"n 1 " + order + b"\nx"):
        with pytest.raises(RendezvousStateError):
            Frame.parse(raw)


def test_a_list_of_queues_names_those_that_rdzv_has_written() -> None:
    raw = b'"a"\n[1]\nx\n\xff\n' + b"[" * 100_000 + b'\n9e9\n"b"\n'
    assert list(_queues(raw)) == ["a", "b"]
