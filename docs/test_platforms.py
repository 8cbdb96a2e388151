"""The table of platforms, in docs/platforms.md, is made of the rows by which they are found."""

import re
from pathlib import Path
from typing import Final

import pytest
from rdzv_cli.platforms import PLATFORMS, Fact, Platform
from rdzv_cli.platforms.detect import in_words

PAGE: Final = Path(__file__).parent / "platforms.md"
COLUMNS: Final = {
    "job": (Fact.JOB,),
    "nodes": (Fact.NODES,),
    "tasks on a node": (Fact.TASKS,),
    "first host": (Fact.HOSTS, Fact.FIRST_HOST),
    "attempt": (Fact.ATTEMPT,),
}


def cell(platform: Platform, facts: tuple[Fact, ...]) -> str:
    """The variables of which one counts, or several together."""
    sources = [source for fact in facts for source in platform.facts.get(fact, ())]
    return "; or ".join(re.sub(r"([\w.|()+*/-]*[A-Z/][\w.|()+*/-]*)", r"`\1`", in_words(one.names)) for one in sources)


def row(rows: list[Platform]) -> str:
    """The row of a platform, which may be there in several ways."""
    tells = "; or ".join(", ".join(f"`{name}`" for name in one.tells) for one in rows)
    cells = [rows[0].name, tells, *(cell(rows[0], facts) for facts in COLUMNS.values()), rows[0].seen]
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def test_the_table_of_platforms_is_made_of_the_rows() -> None:
    columns = ["platform", "there with", *COLUMNS, "read at"]
    head = [f"| {' | '.join(columns)} |", "| " + " | ".join(["---"] * len(columns)) + " |"]
    named: dict[str, list[Platform]] = {}
    for platform in PLATFORMS:
        named.setdefault(platform.name, []).append(platform)
    made = "\n".join([*head, *map(row, named.values())])
    _, mark, rest = PAGE.read_text().partition("\n<!-- made by docs/test_platforms.py -->\n")
    assert mark
    shown = rest.partition("\n\n")[0]
    if shown != made:
        pytest.fail(f"The table of {PAGE.name} has to be:\n{made}", pytrace=False)
