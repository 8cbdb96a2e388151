"""Where the output of processes goes, by the rules of torch itself."""

import argparse
import itertools
import os
from pathlib import Path
from typing import Final

import pytest
from rdzv_cli.agent.log_files import LogFiles, file_of, variables_of
from rdzv_cli.agent.routes import STREAMS, Choice, Routes, parse_choice, parse_ranks
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest, Std, to_map

CHOICES: Final = ["0", "1", "2", "3", "0:3", "1:2", "0:1,1:2", "0:0,2:3", "2:3,0:1,1:0"]
RANKS: Final = range(3)


@pytest.mark.parametrize(
    "text", [*CHOICES, "", "4", "-1", "33", "0:4", "0:3,", ",0:3", "a", "0:", "3 ", "3\n", "0:1;1:1"]
)
def test_a_choice_is_read_as_by_torch(text: str) -> None:
    try:
        theirs = to_map(Std.from_str(text), len(RANKS))
    except ValueError:
        with pytest.raises(argparse.ArgumentTypeError):
            parse_choice(text)
        return
    if text.endswith("\n"):
        return
    ours = parse_choice(text)
    assert {rank: int(ours.of(rank)) for rank in RANKS} == {rank: int(theirs[rank]) for rank in RANKS}


def test_a_node_may_have_more_than_ten_processes() -> None:
    assert parse_choice("0:1,12:3") == Choice(by_rank={0: STREAMS[0], 12: STREAMS[0] | STREAMS[1]})


def _theirs(dest: LogsDest, rank: int) -> list[tuple[bool, bool]]:
    """Whether each stream goes to the console, and whether to a file."""
    written = [(dest.stdouts[rank], dest.tee_stdouts), (dest.stderrs[rank], dest.tee_stderrs)]
    return [(not path or rank in teed, path not in ("", os.devnull)) for path, teed in written]


@pytest.mark.parametrize("shown", ["", "0", "1,2"])
def test_every_stream_goes_where_torchrun_has_it_go(tmp_path: Path, shown: str) -> None:
    ranks = parse_ranks(shown) if shown else ()
    for redirects, tee in itertools.product(CHOICES, CHOICES):
        specs = DefaultLogsSpecs(str(tmp_path), Std.from_str(redirects), Std.from_str(tee), {*ranks} or None)
        dest = specs.reify({rank: {} for rank in RANKS})
        routes = Routes(parse_choice(redirects), parse_choice(tee), ranks)
        for rank in RANKS:
            assert [tuple(routes.of(rank, stream)) for stream in STREAMS] == _theirs(dest, rank), (redirects, tee, rank)


def test_the_files_are_where_torchrun_has_them(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), Std.ALL)
    environs: dict[int, dict[str, str]] = {
        rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "4"} for rank in RANKS
    }
    dest = specs.reify(environs)
    files = LogFiles(str(tmp_path), "job")
    folders = files.of_round(4, len(RANKS))
    assert files.folder is not None

    def shape(path: str) -> tuple[str, ...]:
        run, *below = Path(path).relative_to(tmp_path).parts
        # What is drawn has eight characters.
        return (run[:-8], *below)

    for rank in RANKS:
        for stream, theirs in zip(STREAMS, (dest.stdouts, dest.stderrs), strict=True):
            assert shape(str(file_of(folders[rank], stream))) == shape(theirs[rank])
        [(name, value)] = variables_of(folders[rank]).items()
        assert shape(value) == shape(environs[rank][name])


def test_a_run_id_leads_to_no_other_folder(tmp_path: Path) -> None:
    (folder,) = LogFiles(str(tmp_path / "logs"), "../a/b").of_round(1, 1)
    assert folder.parents[2] == tmp_path / "logs"


@pytest.mark.parametrize("name", ["x" * 1000, "火" * 1000])
def test_a_run_id_of_any_length_has_a_folder(tmp_path: Path, name: str) -> None:
    (folder,) = LogFiles(str(tmp_path), name).of_round(1, 1)
    assert folder.is_dir()


@pytest.mark.parametrize("text", ["", "a", "0,", "0;1", "-1"])
def test_ranks_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_ranks(text)
