"""What `rdzv run` makes of a compressed list of hosts is what ClusterShell and Slurm's own command make of it."""

import os
import subprocess
from pathlib import Path

import pytest
from ClusterShell.NodeSet import NodeSet  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rdzv_cli.platforms.hostlist import expand
from rdzv_conformance.servers import require_service
from tools.slurm import Slurm

WORDS = st.from_regex(r"[a-z]([a-z-]{0,4}[a-z])?", fullmatch=True)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    """What stands in brackets: numbers and ranges of one width, in rising order, so that no oracle sorts them."""
    ends = sorted(draw(st.lists(st.integers(0, 120), min_size=1, max_size=6, unique=True)))
    width = draw(st.sampled_from([1, 3]))
    parts = []
    while ends:
        low = ends.pop(0)
        is_range = draw(st.booleans())
        high = ends.pop(0) if ends and is_range else low
        parts.append(f"{low:0{width}}" if high == low else f"{low:0{width}}-{high:0{width}}")
    return f"[{','.join(parts)}]"


@st.composite
def names(draw: st.DrawFn) -> str:
    """One item of a list: words and numbers, and numbers in brackets anywhere."""
    parts = draw(st.lists(st.tuples(st.one_of(ranges(), st.integers(0, 99).map(str)), WORDS), max_size=2))
    name = draw(WORDS) + "".join(part for pair in parts for part in pair)
    return name.rstrip("abcdefghijklmnopqrstuvwxyz-") or name if draw(st.booleans()) else name


@st.composite
def names_of_slurm(draw: st.DrawFn) -> str:
    """One that Slurm takes, too: nothing stands behind the brackets of it but words and others."""
    before = draw(st.lists(st.tuples(WORDS, st.integers(0, 99).map(str)), max_size=1))
    behind = draw(st.lists(st.tuples(WORDS, ranges()), max_size=2))
    return "".join(part for pair in [*before, *behind] for part in pair) or draw(WORDS)


def lists(of: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Lists of hosts, none of which is named twice."""
    every = st.lists(of, min_size=1, max_size=4)
    return every.map(lambda found: ",".join(f"{letter}{name}" for letter, name in zip("abcd", found, strict=False)))


def check(text: str) -> None:
    """Compare with ClusterShell, which sorts and folds."""
    ours = expand(text)
    assert len(set(ours)) == len(ours)
    assert set(ours) == set(NodeSet(text)), text


@given(lists(names()))
@settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_list_is_what_clustershell_makes_of_it(text: str) -> None:
    check(text)


@pytest.mark.soak
@given(lists(names()))
@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
def test_ten_thousand_lists_are_what_clustershell_makes_of_them(text: str) -> None:
    check(text)


def drawn(count: int) -> list[str]:
    """So many lists, the same each time."""
    found: list[str] = []

    @given(lists(names_of_slurm()))
    @settings(max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])
    def draw(text: str) -> None:
        found.append(text)

    draw()
    return found


def test_lists_are_what_slurm_makes_of_them_in_its_order(tmp_path: Path) -> None:
    require_service(Slurm)
    # Its command wants a configuration, and no daemon.
    (tmp_path / "slurm.conf").write_text("ClusterName=rdzv\nSlurmctldHost=localhost\n")
    environ = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    every = [*drawn(100), "b,n[2,1],r[1-2]n[09-10],a[1-2,1]", "n[001-003,7],gpu-[1-2]"]
    assert len(every) > 100
    for text in every:
        command = ["scontrol", "show", "hostnames", text]
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
        assert expand(text) == tuple(said.split()), text
