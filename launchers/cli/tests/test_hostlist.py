"""Slurm's compressed lists of hosts; dev/tests/test_hostlist.py compares with what others make of them."""

import pytest

from rdzv_cli.platforms.hostlist import MOST_HOSTS, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[001-003,7],gpu-[1-2]-ib", "n001 n002 n003 n7 gpu-1-ib gpu-2-ib"),
        ("rack[1-2]n[09-10]", "rack1n09 rack1n10 rack2n09 rack2n10"),
        ("b,a[2],a[1]", "b a2 a1"),
        ("[1-2]", "1 2"),
        ("a.example.org,10.0.0.[9-11]", "a.example.org 10.0.0.9 10.0.0.10 10.0.0.11"),
        ("n[0-0]", "n0"),
        ("n[099-101]\n", "n099 n100 n101"),
    ],
)
def test_a_list_is_expanded_in_its_order(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,", ",a", "a,,b", "a b", "n[", "n]", "n[]", "n[1-]", "n[-2]", "n[3-1]", "n[a-b]", "n[1,]"),
        *("n[[1]]", "n[1 2]", "n[1-2-3]", "n[1-99999999999]", "n[\u0661-\u0662]"),
    ],
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no list of hosts|no range"):
        expand(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"n[1-{MOST_HOSTS + 1}]", "no range"),
        (f"n[1-{MOST_HOSTS},1]", "no range"),
        ("n[1-60000,1-60000]", "no range"),
        ("n[1-60000]x[1-60000]", "^more than"),
        ("n[1-60000],m[1-60000]", "^more than"),
    ],
)
def test_a_list_of_too_many_hosts_is_refused_at_once(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*{MOST_HOSTS}"):
        expand(text)


def test_as_many_hosts_as_slurm_takes_are_taken() -> None:
    assert len(expand(f"n[1-{MOST_HOSTS}]")) == MOST_HOSTS
