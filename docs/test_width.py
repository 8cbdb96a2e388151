"""Every block of the README and the pages can be read without scrolling sideways, as can what is printed of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
WIDTH = 80

_BLOCK = re.compile(r"(?:^<!-- part of: (\S+) -->\n)?^```(\S*)\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_in_blocks_are_short(page: Path) -> None:
    text = page.read_text()
    long = [
        f"{page.name}:{text.count(chr(10), 0, block.start(3)) + 1 + number}: {line}"
        for block in _BLOCK.finditer(text)
        # What is quoted from the packages is as wide as these; pictures and directives are no text.
        if not block[2].startswith(("mermaid", "{")) and not (block[1] and not block[1].startswith("examples/"))
        for number, line in enumerate(block[3].splitlines())
        if len(line) > WIDTH
    ]
    assert long == []
