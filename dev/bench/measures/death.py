"""How long a death is unknown: from the kill -9 of a member to the moment at which all the others know of it.

A member is killed as soon as its world stands, when its lease has all of its time to live before it. The worlds of one
measurement stand side by side, since they only wait; they begin one after the other, since some services look for
leases that have ended now and then.
"""

import contextlib
import time
from collections.abc import Iterator

from ..pool import WorkerPool
from ..rows import Row
from ..samples import Sample
from ..testbed import Testbed

__all__ = ["NODES", "death"]

NODES = 4
_MISSED = 3
"""A node is dead after so many intervals without a keep-alive."""


def death(testbed: Testbed, row: Row, ttl: int, worlds: int) -> Iterator[Sample]:
    """Seconds, for leases of a time to live; a sample for each world."""
    interval = ttl // _MISSED
    with contextlib.ExitStack() as at_end:
        killed = []
        for _ in range(worlds):
            pool = at_end.enter_context(testbed.pool(row, NODES, min_nodes=2, keep_alive=interval))
            pool.join(testbed.limit)
            *survivors, victim = pool.members
            for survivor in survivors:
                survivor.order("watch", limit=2.0 * ttl)
            killed.append((victim.kill(), WorkerPool(survivors)))
            time.sleep(interval / worlds)
        for at, others in killed:
            known = [moment for moments in others.answers(2 * ttl + testbed.limit) for moment in moments]
            if None in known:
                yield Sample(row.name, f"death-{ttl}", NODES, None, f"unnoticed for {2 * ttl} s")
            else:
                yield Sample(row.name, f"death-{ttl}", NODES, max(known) - at)
            others.end()
