"""The smoke of the soak: of each test that is marked `soak`, or class of such tests, the first case. CI runs these.

A pytest plugin, which the ``conftest.py`` of the workspace names: ``pytest --smoke``. There is no list to keep: a test
that is new has a first case.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--smoke", action="store_true", help="of the soak, run the first case of each test or class, and nothing else"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not marked, and all cases of a test or class after its first."""
    if not config.getoption("--smoke"):
        return
    first: dict[str, pytest.Item] = {}
    for item in items:
        if item.get_closest_marker("soak"):
            # The file, and the class or function: a class of the conformance suite has hundreds.
            first.setdefault("::".join(item.nodeid.partition("[")[0].split("::")[:2]), item)
    kept = set(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = first.values()
