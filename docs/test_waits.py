"""The table of what a node waits for, in docs/cli.md, is made of the words that the node says."""

from pathlib import Path
from typing import Final

import pytest
from rdzv.engine.waits import in_words

from engine.tests.situations import SITUATIONS

PAGE: Final = Path(__file__).parent / "cli.md"


def test_the_table_of_waits_is_what_a_node_says() -> None:
    rows = [f"| {situation} | `{in_words(wait)}` |" for situation, (wait, _) in SITUATIONS.items()]
    made = "\n".join(["| situation | what is waited for |", "| --- | --- |", *rows])
    _, mark, rest = PAGE.read_text().partition("\n<!-- made by docs/test_waits.py -->\n")
    assert mark
    shown = rest.partition("\n\n")[0]
    if shown != made:
        pytest.fail(f"The table of {PAGE.name} has to be:\n{made}", pytrace=False)
