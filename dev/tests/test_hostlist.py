"""What `rdzv run` makes of a compressed list of hosts is what ClusterShell and Slurm's own command make of it."""

import os
import string
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from ClusterShell.NodeSet import NodeSet  # type: ignore[import-untyped]
from rdzv_cli.platforms.hostlist import expand
from rdzv_conformance.servers import require_service
from tools.slurm import Slurm


def lists(count: int, name: Callable[[Random], str]) -> list[str]:
    """So many lists of hosts, none of which is named twice; the same each time."""
    draw = Random(29)
    return [",".join(letter + name(draw) for letter in "abcd"[: draw.randint(1, 4)]) for _ in range(count)]


def word(draw: Random) -> str:
    """Letters, with hyphens between them."""
    inner = draw.choices(string.ascii_lowercase + "---", k=draw.randint(0, 4))
    return "".join([draw.choice(string.ascii_lowercase), *inner, draw.choice(string.ascii_lowercase)])


def number(draw: Random) -> str:
    """One that stands in no brackets."""
    return str(draw.randint(0, 99))


def ranges(draw: Random) -> str:
    """What stands in brackets: numbers and ranges of one width, in rising order, so that no oracle sorts them."""
    ends = sorted(draw.sample(range(121), draw.randint(1, 6)))
    width = draw.choice([1, 3])
    parts = []
    while ends:
        low = ends.pop(0)
        high = ends.pop(0) if ends and draw.random() < 0.5 else low
        parts.append(f"{low:0{width}}" if high == low else f"{low:0{width}}-{high:0{width}}")
    return f"[{','.join(parts)}]"


def name(draw: Random) -> str:
    """One item of a list: words, and numbers, and numbers in brackets anywhere."""
    parts = [word(draw)]
    for _ in range(draw.randint(0, 2)):
        parts += [draw.choice([number, ranges])(draw), word(draw)]
    return "".join(parts[:-1] if len(parts) > 1 and draw.random() < 0.5 else parts)


def name_of_slurm(draw: Random) -> str:
    """One that Slurm takes, too: nothing stands behind the brackets of it but words and others."""
    parts = [word(draw) + number(draw) for _ in range(draw.randint(0, 1))]
    parts += [word(draw) + ranges(draw) for _ in range(draw.randint(0, 2))]
    return "".join(parts) or word(draw)


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_lists_are_what_clustershell_makes_of_them(count: int) -> None:
    for text in lists(count, name):
        ours = expand(text)
        assert len(set(ours)) == len(ours), text
        # It sorts and folds them.
        assert set(ours) == set(NodeSet(text)), text


def test_lists_are_what_slurm_makes_of_them_in_its_order(tmp_path: Path) -> None:
    require_service(Slurm)
    # Its command wants a configuration, and no daemon.
    (tmp_path / "slurm.conf").write_text("ClusterName=rdzv\nSlurmctldHost=localhost\n")
    environ = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    for text in [*lists(100, name_of_slurm), "b,n[2,1],r[1-2]n[09-10],a[1-2,1]", "n[001-003,7],gpu-[1-2]"]:
        command = ["scontrol", "show", "hostnames", text]
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
        assert expand(text) == tuple(said.split()), text
