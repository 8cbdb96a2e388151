"""How platforms write what they tell, one spelling after the other."""

import json
import os
from typing import Any

import pytest

from rdzv_cli.platforms import readers

CLUSTER = json.dumps({"cluster": {"b": ["n2:1", "n3"], "a": ["n1:1"]}, "task": {"type": "b", "index": "1"}})
RESOURCES = json.dumps({"hosts": ["n1", "n2"], "current_host": "n2"})


def before(mark: str, given: str) -> Any:
    """As such a reader has it; `dev.py mutate` changes only what is made after the change."""
    return readers.before(mark)(given)


@pytest.mark.parametrize(
    ("read", "given", "value"),
    [
        (readers.count, ["0"], 0),
        (readers.count, ["999999999"], 999_999_999),
        (readers.some, ["1"], 1),
        (readers.from_one, ["1"], 0),
        (readers.unix_time, ["999999999999"], 999_999_999_999.0),
        (readers.nodes, ["4"], "4"),
        (readers.nodes, ["2:4"], "2:4"),
        (readers.yes, ["Y"], 1),
        (readers.yes, ["y"], 1),
        (readers.joined("-0."), ["a", "b"], "a-0.b"),
        (readers.element, ["7", "0"], "7"),
        (readers.element, ["7", "1"], "7_1"),
        (readers.array, ["7", "0"], None),
        (readers.array, ["7", "1"], "7"),
        (before, ["#", "a#1#2"], "a"),
        (before, ["#", "a"], "a"),
        (readers.first_pod, ["set", "job"], "set-job-0-0.set"),
        (readers.trainer_job, ["job-node-0-0.job.default"], "job"),
        (readers.quotient, ["6", "3"], 2),
        (readers.place, ["5", "3"], 1),
        (readers.tasks_of, ["2(x3),1", "2"], 2),
        (readers.tasks_of, ["2(x3),1", "3"], 1),
        (readers.words, ["n1 n2,n3\nn1"], ("n1", "n2", "n3")),
        (readers.pairs, ["n1 4 n2 4"], ("n1", "n2")),
        (readers.number_of(readers.words), ["n1\nn1\nn2\n"], 2),
        (readers.json_list, ['["n1", "n2"]'], ("n1", "n2")),
        (readers.place_in, ["n2", '["n1", "n2"]'], 1),
        (readers.host_of, ["n1:29500"], "n1"),
        (readers.host_of, ["n1"], "n1"),
        (readers.host_of, ["[fd00::1]:29500"], "fd00::1"),
        (readers.host_of, ["fd00::1"], "fd00::1"),
        (readers.host_of, ["fd00::1:29500"], "fd00::1:29500"),
        (readers.host_of, ["n1:http"], "n1:http"),
        (readers.host_of, ["29500"], "29500"),
        (readers.first_label, ["n1.example.org"], "n1"),
        (readers.without_index, ["job-3", "3"], "job"),
        (readers.this_host_if_first, ["0", "0"], os.uname().nodename),
        (readers.group, ["s1.s2.n1", "switch.switch.node"], "switch=s1.s2"),
        (readers.group, ["b1.n1.example", "block.node"], "block=b1"),
        (readers.without_index, ["job-3.job.default.svc.cluster.local", "3"], "job"),
        (readers.tf_hosts, [CLUSTER], ("n1", "n2", "n3")),
        (readers.tf_rank, [CLUSTER], 2),
        (readers.resource_hosts, [RESOURCES], ("n1", "n2")),
        (readers.resource_rank, [RESOURCES], 1),
    ],
)
def test_a_spelling_means_this(read: Any, given: list[str], value: Any) -> None:
    assert read(*given) == value


@pytest.mark.parametrize(
    ("read", "given", "why"),
    [
        (readers.count, ["1000000000"], "no whole number"),
        (readers.some, ["0"], "not above 0"),
        (readers.from_one, ["0"], "not above 0"),
        (readers.unix_time, ["1000000000000"], "no time"),
        (readers.unix_time, ["\u0661"], "no time"),
        (readers.unix_time, ["1.5"], "no time"),
        (readers.nodes, ["2:0"], "not above 0"),
        (readers.nodes, ["1:2:3"], "no whole number"),
        (readers.yes, ["N"], "not Y"),
        (readers.trainer_job, ["10.0.0.1"], "it is no address of a job's first node"),
        (readers.trainer_job, ["job"], "it is no address of a job's first node"),
        (readers.trainer_job, ["-node-0-0"], "it is no address of a job's first node"),
        (readers.quotient, ["5", "3"], "5 is no multiple of 3"),
        (readers.quotient, ["5", "0"], "not above 0"),
        (readers.tasks_of, ["2(x3),1", "4"], "it names 4 nodes, and this is node 4"),
        (readers.tasks_of, ["2(y3)", "0"], "no list of tasks"),
        (readers.words, [" \n,"], "an empty list"),
        (readers.pairs, ["n1 4 n2"], "no list of hosts and numbers of slots"),
        (readers.pairs, ["n1 4 n2 x"], "no list of hosts and numbers of slots"),
        (readers.pairs, ["n1 x n2 4"], "no list of hosts and numbers of slots"),
        (readers.json_list, ['"n1"'], "no list of hosts"),
        (readers.json_list, ['["n1", 2]'], "no list of hosts"),
        (readers.json_list, ["n1"], "no JSON"),
        (readers.without_index, ["job", "3"], "it does not end with -3"),
        (readers.without_index, ["-3", "3"], "it does not end with -3"),
        (readers.this_host_if_first, ["1", "0"], "another node is the first"),
        (readers.group, ["n1", "node"], "it names the node alone"),
        (readers.group, ["b1.n1", "block.rack"], "it names the node alone"),
        (readers.group, ["b1.n1", "rack.block.node"], r"it has fewer parts than rack\.block\.node"),
    ],
)
def test_what_means_nothing_is_refused(read: Any, given: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(*given)
