import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rdzv_core import plugins
from rdzv_core.errors import RendezvousDeniedError, RendezvousError, RendezvousParameterError

from rdzv import hooks
from rdzv.engine import aside
from rdzv.engine.records import NodeRecord
from rdzv.hooks import Event, EventKind, hookimpl

from .conftest import Install

BACKEND = """
from rdzv_core.backend import BackendPlugin


BACKEND = BackendPlugin("The backend {name}.", (), None, None)
"""

EVENT = Event(EventKind.NODE_LOST, "job-7", 3, "node2", "its lease ended")


def nodes(*ids: str) -> list[NodeRecord]:
    return [NodeRecord(id=each, attempt=0, last_round=0, min_nodes=1, max_nodes=9, address="", port=1) for each in ids]


class Recorder:
    def __init__(self, calls: list[Any], name: str) -> None:
        self.calls = calls
        self.name = name

    @hookimpl
    def rdzv_event(self, event: Event) -> None:
        self.calls.append((self.name, event))


class Raiser:
    def __init__(self, error: Exception) -> None:
        self.error = error

    @hookimpl
    def rdzv_event(self) -> None:
        raise self.error

    rdzv_assign_ranks = rdzv_health_check = rdzv_event


class Assigner:
    def __init__(self, order: Sequence[str] | None) -> None:
        self.order = order

    @hookimpl
    def rdzv_assign_ranks(self, arrived: Sequence[NodeRecord], previous: Sequence[str]) -> Sequence[str] | None:
        return self.order


def test_an_event_reaches_every_plugin_even_if_one_raises(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []
    for plugin in (Recorder(calls, "first"), Raiser(ValueError("broken")), Recorder(calls, "last")):
        hooks.register_hooks(plugin)
    hooks.emit(EVENT)
    assert calls == [("last", EVENT), ("first", EVENT)]
    assert "ValueError: broken" in caplog.text


def test_a_plugin_is_called_once_however_often_it_is_registered_and_not_when_taken_out(install: Install) -> None:
    calls: list[Any] = []
    recorder = Recorder(calls, "mine")
    hooks.register_hooks(recorder)
    hooks.register_hooks(recorder)
    hooks.emit(EVENT)
    assert calls == [("mine", EVENT)]
    hooks.unregister_hooks(recorder)
    hooks.unregister_hooks(recorder)
    hooks.emit(EVENT)
    assert calls == [("mine", EVENT)]


def test_what_is_no_plugin_is_refused(install: Install) -> None:
    class Misspelled:
        @hookimpl
        def rdzv_evnt(self, event: Event) -> None: ...

    class Demanding:
        @hookimpl
        def rdzv_event(self, event: Event, more: int) -> None: ...

    class Wrapping:
        @hookimpl(wrapper=True)
        def rdzv_event(self) -> Any:
            return (yield)

    for plugin, reason in (
        (object(), "marked"), (Misspelled(), "rdzv_evnt"), (Demanding(), "more"), (Wrapping(), "wrapper"),
    ):  # fmt: skip
        with pytest.raises(RendezvousParameterError, match=f"(?s)is no plugin: .*{reason}"):
            hooks.register_hooks(plugin)
        assert not hooks.plugin_manager().is_registered(plugin)


def test_installed_hooks_are_loaded_once_and_called(install: Install) -> None:
    source = """
    from rdzv.hooks import hookimpl
    seen = []

    @hookimpl
    def rdzv_event(event):
        seen.append(event)
    """
    install("acme-hooks", source, {"rdzv.hooks": "acme"})
    hooks.emit(EVENT)
    hooks.emit(EVENT)
    assert sys.modules["acme_hooks"].seen == [EVENT, EVENT]


@pytest.mark.parametrize("is_taken", [True, False])
def test_events_are_announced_aside_if_any_plugin_takes_them(
    is_taken: bool, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    if is_taken:
        hooks.register_hooks(Recorder(calls, "one"))
    announced: list[list[Any]] = []
    monkeypatch.setattr(aside, "announce", lambda events: announced.append(list(events)))
    hooks.announce([EVENT, EVENT])
    assert [len(events) for events in announced] == ([2] if is_taken else [])
    for event in (one for events in announced for one in events):
        event()
    assert calls == [("one", EVENT)] * (2 if is_taken else 0)


def test_one_module_may_bring_a_backend_and_other_hooks(install: Install) -> None:
    source = "from rdzv import hookimpl\nseen = []\n@hookimpl\ndef rdzv_event(event):\n    seen.append(event)\n"
    source += BACKEND.format(name="one")
    install("acme-one", source, {"rdzv": "one", "rdzv.hooks": "acme"})
    assert plugins.load_backend_plugin("one").summary == "The backend one."
    hooks.emit(EVENT)
    assert sys.modules["acme_one"].seen == [EVENT]


def test_broken_installed_hooks_name_their_package_and_disturb_no_backend(install: Install) -> None:
    install("acme-hooks", "import no_such_library", {"rdzv.hooks": "acme"})
    install("acme-one", BACKEND.format(name="one"), {"rdzv": "one"})
    for _ in range(2):
        with pytest.raises(RendezvousError, match=r"'acme' of the package 'acme-hooks' is broken: ModuleNotFoundError"):
            hooks.plugin_manager()
    assert plugins.load_backend_plugin("one").summary == "The backend one."


def test_without_plugins_ranks_are_left_to_the_default(install: Install) -> None:
    assert hooks.assign_ranks(nodes("a", "b"), ()) is None


def test_the_first_answer_orders_the_ranks(install: Install) -> None:
    for order in (("a", "b"), ("b", "a"), None):
        hooks.register_hooks(Assigner(order))
    assert hooks.assign_ranks(nodes("a", "b"), ("b",)) == ("b", "a")


@pytest.mark.parametrize("wrong", [(), ("a",), ("a", "a"), ("a", "b", "c"), (1, "a"), 5])
def test_a_wrong_order_is_logged_and_passed_over(
    wrong: Any, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.register_hooks(Assigner(("b", "a")))
    hooks.register_hooks(Raiser(ValueError("broken")))
    hooks.register_hooks(Assigner(wrong))
    assert hooks.assign_ranks(nodes("a", "b"), ()) == ("b", "a")
    assert caplog.text.count("failed to assign ranks") == 2


def test_every_health_check_sees_the_node(install: Install) -> None:
    calls: list[Any] = []

    class Checker:
        @hookimpl
        def rdzv_health_check(self, labels: Mapping[str, str], run_id: str) -> None:
            calls.append((run_id, labels))

    hooks.register_hooks(Checker())
    hooks.register_hooks(Checker())
    hooks.check_health("job-7", {"rack": "7"})
    assert calls == [("job-7", {"rack": "7"})] * 2


def test_a_failing_health_check_refuses_and_names_plugin_and_cause(install: Install) -> None:
    hooks.register_hooks(Raiser(ValueError("no GPU")))
    with pytest.raises(
        RendezvousError, match=r"'job-7': the health check of the plugin '\w+' failed with ValueError: no GPU"
    ):
        hooks.check_health("job-7", {})


def test_a_health_check_may_choose_the_error(install: Install) -> None:
    error = RendezvousDeniedError("not this machine")
    hooks.register_hooks(Raiser(error))
    with pytest.raises(RendezvousDeniedError) as caught:
        hooks.check_health("job-7", {})
    assert caught.value is error
