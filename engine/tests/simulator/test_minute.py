"""What CI asks of the simulator: about a minute of seeds, on all cores, and no violation.

``RDZV_SIMULATE_SECONDS`` makes it shorter or longer; ``python3 dev.py simulate`` shows more.
"""

import itertools

import pytest

from .budget import SECONDS
from .search import search


@pytest.mark.soak
def test_a_minute_of_seeds_violates_nothing() -> None:
    found = search(itertools.count(), seconds=SECONDS)
    print(found)
    assert found.violations == [], "see it with: python3 dev.py simulate --seed N"
    assert found.rounds > found.seeds > 0
