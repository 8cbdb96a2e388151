"""What stands on the console of what processes have written, in whatever pieces it came."""

import io
import itertools
import os
import random
import threading
from pathlib import Path

import pytest

from rdzv_cli.programs.copier import Sink, Stream, prefixed


def _shown(blocks: list[bytes], prefix: bytes, folder: Path, kept: Path | None = None) -> bytes:
    """What a console gets of blocks that are read one by one."""
    read, write = os.pipe()
    console = os.open(folder / "console", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    file = None if kept is None else os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    stream = Stream(read, Sink(console, "it"), prefixed(prefix), None if file is None else Sink(file, "the file"))
    for block in blocks:
        os.write(write, block)
        stream.copy()
    os.close(write)
    with pytest.raises(EOFError):
        stream.copy()
    for descriptor in (console, file):
        if descriptor is not None:
            os.close(descriptor)
    return (folder / "console").read_bytes()


@pytest.mark.parametrize("prefix", [b"", b"[1:0] ", b"\n"])
def test_lines_are_whole_in_whatever_pieces_they_come(tmp_path: Path, prefix: bytes) -> None:
    drawn = random.Random(29)
    for _ in range(300):
        text = bytes(drawn.choices(b"ab\n\r", (4, 4, 2, 2), k=drawn.randrange(60)))
        cuts = [0, *sorted(drawn.sample(range(len(text) + 1), min(8, len(text)))), len(text)]
        blocks = [text[begin:end] for begin, end in itertools.pairwise(cuts) if begin < end]
        # As a text is read whose lines end in any of three ways.
        lines = io.TextIOWrapper(io.BytesIO(text), newline=None).read().removesuffix("\n")
        expected = b"".join(prefix + line.encode() + b"\n" for line in lines.split("\n")) if text else b""
        assert _shown(blocks, prefix, tmp_path, tmp_path / "file") == expected, text
        assert (tmp_path / "file").read_bytes() == text


def test_a_line_without_an_end_needs_no_room_without_an_end(tmp_path: Path) -> None:
    blocks = [b"x" * (1 << 15)] * 80
    shown = _shown(blocks, b"-", tmp_path)
    assert shown.replace(b"\n", b"").replace(b"-", b"") == b"".join(blocks)
    assert [len(line) > 1 << 20 for line in shown.splitlines()] == [True, True, False]


def test_the_tail_is_the_end_of_all() -> None:
    read, write = os.pipe()
    stream = Stream(read, Sink(os.open(os.devnull, os.O_WRONLY), "it"), prefixed(b""), None)
    for size in (1, 3000, 10, 1995):
        os.write(write, (text := b"%d," % size * size)[:size])
        stream.copy()
    assert stream.tail == (10 * b"10,")[5:10] + text[:1995]
    os.close(read)
    os.close(write)


def test_an_end_that_has_come_is_seen_with_what_stands_before_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    console = os.open(tmp_path / "console", os.O_WRONLY | os.O_CREAT)
    stream = Stream(read, Sink(console, "it"), prefixed(b"-"), None)
    os.write(write, b"first\nsec")
    stream.empty()
    assert (tmp_path / "console").read_bytes() == b"-first\n"
    os.write(write, b"ond")
    os.close(write)
    with pytest.raises(EOFError):
        stream.empty()
    os.close(console)
    assert (tmp_path / "console").read_bytes() == b"-first\n-second\n"


def test_no_line_of_another_process_stands_within_one_of_these() -> None:
    """In a pipe to which both write, as the agent does to the standard error."""
    read, write = os.pipe()
    ours, theirs = b"o" * 90 + b"\n", b"t" * 70 + b"\n"
    sink = Sink(write, "it")

    def write_ours() -> None:
        for _ in range(20):
            sink.write(ours * 1000)

    def write_theirs() -> None:
        for _ in range(5000):
            os.write(write, theirs)

    threads = [threading.Thread(target=write_ours), threading.Thread(target=write_theirs)]
    for thread in threads:
        thread.start()
    left, got = 20_000 * len(ours) + 5000 * len(theirs), b""
    while len(got) < left:
        got += os.read(read, 1 << 12)
    for thread in threads:
        thread.join()
    os.close(read)
    os.close(write)
    assert sorted({*got.splitlines(keepends=True)}) == [ours, theirs]


def test_a_sink_that_waits_for_room_is_waited_for() -> None:
    """Another process that has the console, too, has made its writes return at once."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    sink = Sink(write, "it")

    def write_all() -> None:
        sink.write(b"line\n" * 100_000)
        os.close(write)

    thread = threading.Thread(target=write_all)
    thread.start()
    got = b""
    while block := os.read(read, 1 << 12):
        got += block
    thread.join()
    os.close(read)
    assert got == b"line\n" * 100_000
    assert sink.is_open
