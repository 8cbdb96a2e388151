"""Reading an endless answer from the bytes that come, however they are cut."""

import pytest

from rdzv_etcd_v3.stream import HttpLines

_HEAD = b"HTTP/1.1 200 OK\r\nDate: today\r\nTransfer-Encoding: Chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    # Three chunks: a line and a half, the other half, an empty line; then the last chunk.
    data = _HEAD + b'a;ext=1\r\n{"a":1}\n{"\r\n' + b'5\r\nb":2}\r\n' + b"2\r\n\n\n\r\n" + b"0\r\n\r\n"
    lines = HttpLines()
    found = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    assert lines.status == 200
    assert found == [b'{"a":1}', b'{"b":2}']
    assert lines.rest == b""


def test_a_body_without_chunks_is_read_as_well() -> None:
    lines = HttpLines()
    assert lines.feed(b"HTTP/1.0 200 OK\r\n\r\n1\n2") == [b"1"]
    assert lines.feed(b"3\n") == [b"23"]


def test_the_body_of_an_error_is_kept_whole() -> None:
    lines = HttpLines()
    assert lines.feed(b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nNot Found\n") == []
    assert (lines.status, lines.rest) == (404, b"Not Found\n")


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 ok\r\n\r\n", _HEAD + b"zz\r\n{}\r\n"])
def test_what_is_not_http_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|invalid"):
        HttpLines().feed(data)
