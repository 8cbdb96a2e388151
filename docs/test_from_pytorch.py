"""What the page for those who come from PyTorch says is so: every name on either side exists, and none is forgotten."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import rdzv
from rdzv.plugins import load_backend_plugin

PAGE = (Path(__file__).parent / "from-pytorch.md").read_text()
TORCH = "torch.distributed.elastic.rendezvous"


def _rows(section: str, columns: int) -> list[list[str]]:
    """The cells of the tables of a section, without their heads."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if len(row) == columns and row[0].startswith("`")]


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


API = _rows("The API", 3)
DYNAMIC = _rows("The dynamic rendezvous", 3)
BACKENDS = _rows("The backends", 3)
OPTIONS = _rows("The backends", 4)
TORCHELASTIC = _rows("torchelastic", 3)


def _find(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_the_page_has_its_tables() -> None:
    assert [len(rows) for rows in (API, DYNAMIC, BACKENDS, OPTIONS, TORCHELASTIC)] == [14, 7, 14, 20, 8]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(rdzv\w*(?:\.\w+)+)`", PAGE))))
def test_our_name_exists(name: str) -> None:
    assert _find(name) is not None


@pytest.mark.parametrize("row", [*API, *DYNAMIC, *TORCHELASTIC], ids=lambda row: row[0])
def test_every_name_has_one_of_ours(row: list[str]) -> None:
    assert len(_names(row[1])) == len(_names(row[0]))


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: " ".join(row[:2]))
def test_our_option_exists(row: list[str]) -> None:
    theirs, backend, ours = (_names(cell) for cell in row[:3])
    options = load_backend_plugin(backend[0]).options if backend else rdzv.CORE_OPTIONS
    assert theirs == ours
    assert ours[0] in {option.name for option in options}


def test_theirs_exist_and_none_is_forgotten() -> None:
    pytest.importorskip(TORCH)
    listed = {_names(row[0])[0] for row in API}
    assert listed == {*_find(TORCH).__all__, "get_rendezvous_handler"}
    dynamic = _find(f"{TORCH}.dynamic_rendezvous")
    assert {_names(row[0])[0].split(".")[0] for row in DYNAMIC} == {*dynamic.__all__, "Token"}
    backends = [_names(row[0])[0] for row in BACKENDS]
    for name in backends:
        _find(f"{TORCH}.{name}")
    for module in ("c10d_rendezvous_backend", "etcd_rendezvous_backend", "etcd_rendezvous", "etcd_store", "utils"):
        found = _find(f"{TORCH}.{module}")
        own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == found.__name__]
        public = getattr(found, "__all__", [name for name in own if not name.startswith("_")])
        assert {f"{module}.{name}" for name in public} <= set(backends)


def test_the_defaults_that_the_page_names() -> None:
    (read_timeout,) = (option for option in load_backend_plugin("etcd-v2").options if option.name == "read_timeout")
    assert f"{read_timeout.default:g} s by default, not 60" in PAGE
    assert issubclass(rdzv.RendezvousParameterError, ValueError | rdzv.RendezvousError)
    assert issubclass(rdzv.RendezvousTimeoutError, TimeoutError)
    assert issubclass(rdzv.RendezvousConnectionError, ConnectionError)


def test_a_url_of_torchelastics_with_our_names() -> None:
    params = rdzv.RendezvousParameters.from_url("etcd://localhost:2379/1234?min=1&max=3")
    assert (params.backend, params.endpoint, params.run_id) == ("etcd", "localhost:2379", "1234")
    assert (params.min_nodes, params.max_nodes) == (1, 3)
