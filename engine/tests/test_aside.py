"""What hangs while it takes what nodes say, or what a plugin is asked, holds up no node."""

import ast
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rdzv_core.backend import PutResult
from rdzv_core.threads import in_thread

from rdzv import NodeRecord, RendezvousDeniedError, engine
from rdzv.engine import leader, leave
from rdzv.engine.effects import Coroutine
from rdzv.engine.node import Node
from rdzv.engine.ranks import Order, RankAssignment
from rdzv.hooks import Event, hookimpl

from .memory import MemoryBackend
from .test_backlog import Hang
from .test_rendezvous import Run, plugged_in
from .waiting import wait_until


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run("memory")
    yield run
    run.close()


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.goes_on.set()


class Handler(logging.Handler):
    """One that hangs while it takes the first line of a node."""

    def __init__(self, hang: Hang) -> None:
        super().__init__()
        self.hang = hang
        self.threads: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.threads.append(record.threadName or "")
        self.hang()


def test_a_handler_of_the_log_that_hangs_holds_up_no_round(run: Run, hang: Hang) -> None:
    nodes = run.nodes(3, 2, 3)
    run.gather(*nodes)
    handler, log = Handler(hang), logging.getLogger("rdzv")
    log.addHandler(handler)
    try:
        # The leader says whom it leaves out, between two effects.
        run.crash(next(node for node in nodes if not node._node.leading))
        left = [node for node in nodes if not node._node.stopped]
        wait_until(lambda: all(node.num_nodes_waiting() for node in left))
        run.gather(*left)
        assert hang.begun.wait(30)
        # The handler still hangs.
        infos = run.gather(*left)
        assert [info.world_size for info in infos] == [2, 2]
        hang.goes_on.set()
        run.close()
        # The record tells which thread said it.
        wait_until(lambda: any(name.startswith("rdzv-lead") for name in handler.threads))
    finally:
        hang.goes_on.set()
        log.removeHandler(handler)


def test_what_a_backend_says_holds_up_no_call(run: Run, hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    put, log = MemoryBackend.put, logging.getLogger("a_plugin.backend")

    def says(*arguments: Any, **options: Any) -> PutResult:
        log.warning("the password cannot be read again")
        return put(*arguments, **options)

    monkeypatch.setattr(MemoryBackend, "put", says)
    handler = Handler(hang)
    log.addHandler(handler)
    try:
        nodes = run.nodes(2, 2, 2)
        infos = run.gather(*nodes)
        # Of a program, too.
        in_thread(lambda: infos[0].store.set("key", "value"), "sets").result(30)
        assert hang.begun.wait(30)
    finally:
        hang.goes_on.set()
        log.removeHandler(handler)


def test_a_loop_that_has_ended_waits_for_no_handler_of_the_log(run: Run, hang: Hang) -> None:
    def breaks() -> Coroutine[None]:
        raise KeyError("never")
        yield

    node = run.node(1, 1)
    handler, log = Handler(hang), logging.getLogger("rdzv")
    log.addHandler(handler)
    try:
        node._runner.start("breaks", breaks())
        assert hang.begun.wait(30)
        wait_until(lambda: not any(thread.name.startswith("rdzv-breaks") for thread in threading.enumerate()), 5)
    finally:
        hang.goes_on.set()
        log.removeHandler(handler)


def test_a_node_that_cannot_leave_in_order_ends_although_a_handler_of_the_log_hangs(
    run: Run, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(node: Node, reason: str, closes: bool) -> Coroutine[None]:
        raise RendezvousDeniedError("The service refuses a delete.")
        yield

    node = run.node(1, 1)
    run.join(node)
    monkeypatch.setattr(leave, "end", refused)
    handler, log = Handler(hang), logging.getLogger("rdzv")
    log.addHandler(handler)
    try:
        assert in_thread(node.leave, "leaves").result(30) is False
        assert hang.begun.is_set()
        assert node._node.stopped
    finally:
        hang.goes_on.set()
        log.removeHandler(handler)


def test_a_plugin_that_hangs_while_it_takes_an_event_holds_up_no_round(run: Run, hang: Hang) -> None:
    class Plugin:
        @hookimpl
        def rdzv_event(self, event: Event) -> None:
            hang()

    with plugged_in(Plugin()):
        nodes = run.nodes(2, 2, 2)
        run.gather(*nodes)
        assert hang.begun.wait(30)
        assert {info.round for info in run.gather(*nodes)} == {2}
        hang.goes_on.set()


class Assigner:
    """A plugin that reverses the ranks, when it may go on."""

    def __init__(self, hang: Hang) -> None:
        self.hang = hang
        self.asked = 0

    @hookimpl
    def rdzv_assign_ranks(self, arrived: Sequence[NodeRecord], previous: Sequence[str]) -> Sequence[str]:
        self.asked += 1
        self.hang()
        return sorted((node.id for node in arrived), reverse=True)


def test_a_plugin_that_takes_too_long_to_assign_ranks_gets_no_say(
    run: Run, hang: Hang, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader, "ASSIGNING", 0.2)
    assigner = Assigner(hang)
    names = ["a", "b"]
    with plugged_in(assigner):
        nodes = [run.node(2, 2, node_name=name) for name in names]
        for number in (1, 2):
            # As long as it hangs it is not asked again.
            infos = run.gather(*nodes)
            assert [info.rank for info in infos] == [0, 1]
            assert (assigner.asked, infos[0].round) == (1, number)
        assert sum(thread.name == "rdzv-ranks" for thread in threading.enumerate()) == 1
        assert wait_until(lambda: caplog.text.count("takes too long to assign ranks") == 2)
        hang.goes_on.set()
        wait_until(lambda: not any(thread.name == "rdzv-ranks" for thread in threading.enumerate()))
        monkeypatch.undo()
        assert [info.rank for info in run.gather(*nodes)] == [1, 0]


def test_what_a_plugin_was_asked_before_is_no_answer(hang: Hang) -> None:
    class Late(Future[Order]):
        """Comes just after it was found missing."""

        def done(self) -> bool:
            there = super().done()
            if not there:
                self.set_result(["a", "b"])
            return there

    ranks, before = RankAssignment(), Late()
    ranks._asked = before
    with plugged_in(Assigner(hang)):
        assert ranks.order((), (), lambda asked: None) is None
    assert before.done()


def test_a_node_ends_although_its_plugin_hangs(run: Run, hang: Hang, caplog: pytest.LogCaptureFixture) -> None:
    with plugged_in(Assigner(hang)):
        node = run.node(1, 1)
        run.join(node)
        assert hang.begun.wait(30)
        assert node.leave()
        assert "has not ended" not in caplog.text
        hang.goes_on.set()


@pytest.mark.parametrize("module", sorted(Path(engine.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_what_runs_in_nodes_logs_aside(module: Path) -> None:
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    assert "logging.getLogger" not in calls or module.stem == "aside"
