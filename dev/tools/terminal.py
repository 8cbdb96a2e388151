#!/usr/bin/env python3
"""Records `python3 dev.py demo` as the picture with which the README begins: ``python3 dev.py terminal``.

Each line of the picture lights up when it appeared in the run, and stays. Libraries draw a still of some 40 KB, with a
font from the network (rich), or a film that cannot be read as a whole (asciinema's tools).
"""

import os
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURE: Final = ROOT / "docs" / "terminal.svg"
COMMAND: Final = "python3 dev.py demo"

COLUMNS, LINE, CHARACTER, SIZE, MARGIN, BAR = 80, 18, 7.8, 13, 16, 30
"""A terminal's width in characters, and lengths in pixels; a character of a monospaced font is 0.6 of its size wide."""

STYLE: Final = """\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d8dee9;white-space:pre;\
animation:show .1s both}
.c1{font-weight:bold;fill:#fff}.c2{fill:#9aa5b8}.c31{fill:#f28779}.c32{fill:#a3d977}.c33{fill:#f2cc60}.c34{fill:#8ab4f8}\
.c35{fill:#e0a3f0}.c36{fill:#6fd6d6}
@keyframes show{from{opacity:.3}}
@media(prefers-reduced-motion:reduce){text{animation:none}}"""
"""The window is dark wherever it is shown, so it can be read on a light page and on a dark one."""


class Line(NamedTuple):
    """A line that a program wrote to its terminal, and the seconds after which it did."""

    at: float
    text: str


def record(command: list[str]) -> list[Line]:
    """Run a command in a terminal of its own; returns what it wrote.

    Raises:
        subprocess.CalledProcessError: It did not end with exit code 0.
    """
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (60, COLUMNS))
    begin = time.monotonic()
    variables = {"TERM": "xterm-256color", "TMPDIR": "/tmp"}  # noqa: S108 - what the picture shows is of no machine
    with subprocess.Popen(command, cwd=ROOT, stdout=its, stderr=its, env=os.environ | variables) as process:
        os.close(its)
        with open(ours, "rb", buffering=0) as terminal:
            lines = list(_lines(terminal.fileno(), begin))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, "\n".join(line.text for line in lines))
    return lines


def _lines(terminal: int, begin: float) -> Iterator[Line]:
    """Each line, as it is complete."""
    rest = b""
    while chunk := _read(terminal):
        *whole, rest = (rest + chunk).split(b"\n")
        at = time.monotonic() - begin
        yield from (Line(at, line.decode().rstrip()) for line in whole)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's word for the end: no process has the other side open
        return b""


def draw(typed: str, lines: list[Line]) -> str:
    """The picture of a terminal in which a command was typed, and said these lines."""
    rows = [Line(0, f"\x1b[32m$\x1b[0m {typed}"), *lines]
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = len(rows) * LINE + BAR + MARGIN
    dots = "".join(f'<circle cx="{x}" cy="{BAR / 2:g}" r="5" fill="#56607a"/>' for x in (20, 38, 56))
    drawn = [
        f'<text y="{number * LINE + BAR + SIZE}" style="animation-delay:{row.at:.1f}s">{_spans(row.text)}</text>'
        for number, row in enumerate(rows)
        if row.text
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f"<title>{escape(typed)}, recorded</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="#1f2430"/>{dots}',
            *drawn,
            "</svg>\n",
        ]
    )


def _spans(text: str) -> str:
    """A line's pieces, each in its colour and at its column, whatever the width of the reader's font."""
    spans = []
    column = 0
    first, *rest = re.split(r"\x1b\[(\d+)m", text)
    for colour, piece in [("0", first), *zip(rest[::2], rest[1::2], strict=True)]:
        if piece.strip():
            place = f'x="{MARGIN + column * CHARACTER:g}" textLength="{len(piece) * CHARACTER:g}"'
            paint = f' class="c{colour}"' if colour != "0" else ""
            spans.append(f"<tspan {place}{paint}>{escape(piece, quote=False)}</tspan>")
        column += len(piece)
    return "".join(spans)


def main() -> None:
    """Record, and write the picture."""
    lines = record([sys.executable, *COMMAND.split()[1:]])
    PICTURE.write_text(draw(COMMAND, lines))
    print(f"{PICTURE.relative_to(ROOT)}: {len(lines)} lines, {PICTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
