"""What the page for those who come from PyTorch says is so: every name on either side exists, and none is forgotten."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import rdzv
from rdzv.registry import create_backend
from rdzv_core.plugins import load_backend_plugin
from rdzv_sqlite import SqliteBackend
from tools.torch_names import find, names_in

PAGE = (Path(__file__).parent / "from-pytorch.md").read_text()
TORCH = "torch.distributed.elastic.rendezvous"
FAST = {"last_call_timeout": "0.2", "keep_alive_interval": "1"}
"""For worlds of real handlers."""


def _rows(section: str, columns: int) -> list[list[str]]:
    """The cells of the tables of a section, without their heads."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if len(row) == columns and row[0].startswith("`")]


API = _rows("The API", 3)
DYNAMIC = _rows("The dynamic rendezvous", 3)
STORE = _rows("The store", 3)
BACKENDS = _rows("The backends", 3)
OPTIONS = _rows("The backends", 4)
TORCHELASTIC = _rows("torchelastic", 3)


def test_the_page_has_its_tables() -> None:
    assert [len(rows) for rows in (API, DYNAMIC, STORE, BACKENDS, OPTIONS, TORCHELASTIC)] == [14, 7, 2, 14, 21, 8]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(rdzv\w*(?:\.\w+)+)`", PAGE))))
def test_our_name_exists(name: str) -> None:
    assert find(name) is not None


@pytest.mark.parametrize("row", [*API, *DYNAMIC, *STORE, *TORCHELASTIC], ids=lambda row: row[0])
def test_every_name_has_one_of_rdzv(row: list[str]) -> None:
    assert len(names_in(row[1])) == len(names_in(row[0]))


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: " ".join(row[:2]))
def test_our_option_exists(row: list[str]) -> None:
    theirs, backend, ours = (names_in(cell) for cell in row[:3])
    options = load_backend_plugin(backend[0]).options if backend else rdzv.HANDLER_OPTIONS
    assert theirs == ours
    assert ours[0] in {option.name for option in options}


def test_theirs_exist() -> None:
    """That none is forgotten is a matter of dev/tools/torch_names.py."""
    pytest.importorskip(TORCH)
    for module, table in (("api", API), ("dynamic_rendezvous", DYNAMIC), ("", BACKENDS)):
        for name in (names_in(row[0])[0] for row in table):
            find(".".join(filter(None, (TORCH, "registry" if name == "get_rendezvous_handler" else module, name))))
    for row in STORE:
        find(names_in(row[0])[0])


def test_the_backoff_of_pytorch_2_15_is_taken(tmp_path: Path) -> None:
    """It changes nothing, and a value that PyTorch refuses is refused."""

    def params(**options: Any) -> rdzv.RendezvousParameters:
        return rdzv.RendezvousParameters("sqlite", str(tmp_path / "rdzv.db"), "job", 1, 1, **FAST, **options)

    backend, store = create_backend(params())
    from_backend = rdzv.DynamicRendezvousHandler.from_backend
    with from_backend("job", store, backend, 1, 1, None, None, 5, 3, cas_backoff_max_seconds=0.5) as dynamic:
        assert dynamic.settings.cas_backoff_max_seconds == 0.5
    backend, store = create_backend(params())
    with rdzv.create_handler(store, backend, params(cas_backoff_max_seconds="0.25")) as dynamic:
        assert dynamic.settings.cas_backoff_max_seconds == 0.25
    with rdzv.get_rendezvous_handler(params(cas_backoff_max_seconds="0", attempt=1)) as handler:
        assert handler.next_rendezvous().world_size == 1
    for impossible in ("-1", "inf", "nan", "soon"):
        with pytest.raises(ValueError, match="cas_backoff_max_seconds"):
            rdzv.get_rendezvous_handler(params(cas_backoff_max_seconds=impossible))


CHOICES = [
    ("c10d", "store_type", "TCP ", "tcp"),
    ("etcd-v2", "protocol", " HTTPS", "https"),
    ("etcd", "protocol", "Http", "http"),
]


@pytest.mark.parametrize(("backend", "name", "given", "meant"), CHOICES)
def test_a_choice_is_read_as_there(backend: str, name: str, given: str, meant: str) -> None:
    (option,) = (option for option in load_backend_plugin(backend).options if option.name == name)
    assert option.parse(given) == meant


def test_a_run_of_one_node_needs_no_port_and_no_file() -> None:
    """PyTorch's recipe for several jobs on one machine; for more nodes it is refused, as they would never meet."""
    pytest.importorskip("torch")
    for endpoint, options in (("localhost:0", {}), ("", {"store_type": "file"})):
        params = [rdzv.RendezvousParameters("c10d", endpoint, "job", 1, most, **FAST, **options) for most in (1, 1, 2)]
        with rdzv.get_rendezvous_handler(params[0]) as one, rdzv.get_rendezvous_handler(params[1]) as other:
            assert [one.next_rendezvous().world_size, other.next_rendezvous().world_size] == [1, 1]
        with pytest.raises(ValueError, match=r"no other process can know it|a file of its own"):
            rdzv.get_rendezvous_handler(params[2])


def test_a_wait_that_is_over_is_reported_with_pytorchs_word(tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    torch_store = pytest.importorskip("rdzv_torchrun.store")
    store = rdzv.KeyValueStore(SqliteBackend(str(tmp_path / "rdzv.db"), "job"))
    theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours = torch_store.TorchStore(store)
    for one in (theirs, ours, dist.PrefixStore("part", ours)):
        with pytest.raises(dist.DistStoreError, match="timeout"):
            one.wait(["missing"], timedelta(milliseconds=50))
    store.close()


def test_the_defaults_that_the_page_names() -> None:
    (read_timeout,) = (option for option in load_backend_plugin("etcd-v2").options if option.name == "read_timeout")
    assert f"{read_timeout.default:g} s by default, not 60" in PAGE
    assert issubclass(rdzv.RendezvousParameterError, ValueError | rdzv.RendezvousError)
    assert issubclass(rdzv.RendezvousTimeoutError, TimeoutError)
    assert issubclass(rdzv.RendezvousConnectionError, ConnectionError)


def test_a_url_of_torchelastics_with_our_names() -> None:
    params = rdzv.config.from_url("etcd://localhost:2379/1234?min=1&max=3")
    assert (params.backend, params.endpoint, params.run_id) == ("etcd", "localhost:2379", "1234")
    assert (params.min_nodes, params.max_nodes) == (1, 3)
