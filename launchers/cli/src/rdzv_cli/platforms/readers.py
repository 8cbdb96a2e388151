"""How platforms write what they tell: from the text of variables or files to a value, or ValueError with the reason."""

import json
import os
import re
from typing import Any, Final

from .hostlist import expand

_COUNT: Final = re.compile(r"[0-9]{1,9}")
_DIGITS: Final = 12
_REPEATED: Final = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,5})\))?")


def text(given: str) -> str:
    """As it stands."""
    return given


def count(given: str) -> int:
    """A whole number from 0 on."""
    if not _COUNT.fullmatch(given):
        raise ValueError("no whole number")
    return int(given)


def some(given: str) -> int:
    """A whole number above 0."""
    if (number := count(given)) == 0:
        raise ValueError("not above 0")
    return number


def from_one(given: str) -> int:
    """A number that counts from 1, as from 0."""
    return some(given) - 1


def unix_time(given: str) -> float:
    """Seconds since 1970."""
    if not given.isdecimal() or not given.isascii() or len(given) > _DIGITS:
        raise ValueError("no time")
    return float(given)


def nodes(given: str) -> str:
    """A number of nodes, or ``MIN:MAX``."""
    for part in given.split(":", 1):
        some(part)
    return given


def yes(given: str) -> int:
    """Once, if it says yes."""
    if given not in ("Y", "y"):
        raise ValueError("not Y")
    return 1


def joined(separator: str) -> Any:
    """Several texts as one."""
    return lambda *given: separator.join(given)


def element(job: str, index: str) -> str:
    """An element of a job array; index 0 is a job that is in none."""
    return f"{job}_{index}" if count(index) else job


def array(job: str, index: str) -> str | None:
    """The id of a whole job array; None: index 0 is a job that is in none."""
    return job if count(index) else None


def before(mark: str) -> Any:
    """What stands before a mark, or all."""
    return lambda given: given.partition(mark)[0]


def first_pod(job_set: str, job: str) -> str:
    """The host name of the first pod of a JobSet's first Job."""
    return f"{job_set}-{job}-0-0.{job_set}"


def trainer_job(address: str) -> str:
    """The job whose first node has the address ``job-node-0-0.job``."""
    job = address.partition(".")[2].partition(".")[0]
    if not job or not address.startswith(f"{job}-node-"):
        raise ValueError("it is no address of a job's first node")
    return job


def quotient(number: str, divisor: str) -> int:
    """How many groups of one size there are, or the group of a rank; only if all are of that size."""
    whole, rest = divmod(count(number), some(divisor))
    if rest:
        raise ValueError(f"{number} is no multiple of {divisor}: the nodes have unequal numbers of tasks")
    return whole


def place(rank: str, size: str) -> int:
    """The node of a rank, where each node has `size` ranks, one after the other."""
    return count(rank) // some(size)


def tasks_of(tasks: str, node: str) -> int:
    """The tasks of one node in Slurm's list of all, such as ``2(x3),1``."""
    every: list[int] = []
    for each in tasks.split(","):
        if not (found := _REPEATED.fullmatch(each)):
            raise ValueError("no list of tasks, such as 2(x3),1")
        every += [int(found[1])] * int(found[2] or 1)
    if count(node) >= len(every):
        raise ValueError(f"it names {len(every)} nodes, and this is node {node}")
    return every[int(node)]


def hosts(given: str) -> tuple[str, ...]:
    """Hosts in Slurm's compressed list."""
    return expand(given)


def words(given: str) -> tuple[str, ...]:
    """Hosts on lines, or with spaces or commas between them; each counts once, also with a line for each slot."""
    return _some_hosts(re.split(r"[\s,]+", given))


def pairs(given: str) -> tuple[str, ...]:
    """Hosts, each before its number of slots."""
    every = given.split()
    if len(every) % 2 or not all(_COUNT.fullmatch(slots) for slots in every[1::2]):
        raise ValueError("no list of hosts and numbers of slots")
    return _some_hosts(every[::2])


def number_of(read: Any) -> Any:
    """How many hosts such a list has."""
    return lambda *given: len(read(*given))


def json_list(given: str) -> tuple[str, ...]:
    """Hosts in a JSON list."""
    return _some_hosts(_json(given))


def place_in(host: str, listed: str) -> int:
    """The place of a host in a JSON list."""
    return json_list(listed).index(host)


def host_of(given: str) -> str:
    """The host of ``host:port``; IPv6 is in brackets there."""
    host, colon, port = given.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() and (":" not in host or host[0] == "[") else given


def first_label(given: str) -> str:
    """What stands before the first dot."""
    return given.partition(".")[0]


def without_index(name: str, index: str) -> str:
    """A pod's name, of which its host name may be a part, without the index that it ends with."""
    pod = first_label(name)
    if not (found := pod.removesuffix(f"-{count(index)}")) or found == pod:
        raise ValueError(f"it does not end with -{index}")
    return found


def of_one_task(read: Any) -> Any:
    """Reads it of the only task of a job; which of several are the nodes of one run is for the user to say."""

    def checked(*tasks: str) -> Any:
        if len(tasks) > 1:
            raise ValueError(f"the job has {len(tasks)} tasks, and may have as many runs")
        return read(*tasks)

    return checked


def job_of_one_task(name: str, index: str, *tasks: str) -> str:
    """A pod's name without its index: pods of another task have another name."""
    return str(of_one_task(lambda only: without_index(name, index))(*tasks))


def this_host_if_first(index: str, first: str) -> str:
    """This machine's name, if it is the first node."""
    if index != first:
        raise ValueError("another node is the first")
    return os.uname().nodename


def group(address: str, pattern: str) -> str:
    """The innermost block or switch of this node, as ``block=b1``, from its place in the network: without a topology
    there is the node alone."""
    names, kinds = address.split("."), pattern.split(".")
    if len(kinds) < 2 or kinds[-1] != "node":
        raise ValueError("no topology: it names the node alone")
    if len(names) < len(kinds):
        raise ValueError(f"it has fewer parts than {pattern}")
    # A node's name may have dots.
    return f"{kinds[-2]}={'.'.join(names[: len(kinds) - 1])}"


def tf_hosts(spec: str) -> tuple[str, ...]:
    """All hosts of a cluster's description in JSON, pool by pool."""
    return _some_hosts([host_of(host) for pool in _pools(spec).values() for host in pool])


def tf_rank(spec: str) -> int:
    """The place of this host among them."""
    task = _json(spec)["task"]
    before = [pool for name, pool in _pools(spec).items() if name < task["type"]]
    return sum(map(len, before)) + count(str(task["index"]))


def _pools(spec: str) -> dict[str, list[str]]:
    return dict(sorted(_json(spec)["cluster"].items()))


def resource_hosts(given: str) -> tuple[str, ...]:
    """The hosts of SageMaker's resourceconfig.json."""
    return _some_hosts(_json(given)["hosts"])


def resource_rank(given: str) -> int:
    """The place of this host among them."""
    return resource_hosts(given).index(_json(given)["current_host"])


def _json(given: str) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ValueError("no JSON") from error


def _some_hosts(every: Any) -> tuple[str, ...]:
    if not isinstance(every, (list, tuple)) or not all(isinstance(host, str) for host in every):
        raise ValueError("no list of hosts")
    if not (found := tuple(dict.fromkeys(filter(None, every)))):
        raise ValueError("an empty list")
    return found
