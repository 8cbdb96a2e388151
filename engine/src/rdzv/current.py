"""The environment of a program that ``rdzv run`` has started: the variables, and `current` to read them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Self

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.handler import Drain, RendezvousInfo
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.store import Store

from .channel import ProcessEnd
from .config import from_env, to_env
from .engine.handler import with_keys
from .engine.rounds import round_store, run_store
from .registry import create_backend

__all__ = ["World", "current", "variables"]


def variables(
    params: RendezvousParameters,
    info: RendezvousInfo,
    *,
    local_rank: int,
    processes: int,
    restarts: int,
    channel: str = "",
) -> dict[str, str]:
    """The environment of one of the processes that an agent starts on its node.

    Args:
        params: How the agent was started.
        info: The world that its node got.
        local_rank: Which of the node's processes.
        processes: How many of them each node has.
        restarts: How often the agent has started the command anew.
        channel: The path of the file by which the process and its agent talk (`rdzv.channel`); empty: they do not.
    """
    bootstrap = info.bootstrap_store_info
    values = {
        "RANK": info.rank * processes + local_rank,
        "WORLD_SIZE": info.world_size * processes,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": processes,
        "GROUP_RANK": info.rank,
        "GROUP_WORLD_SIZE": info.world_size,
        "ROLE_RANK": info.rank * processes + local_rank,
        "ROLE_WORLD_SIZE": info.world_size * processes,
        "ROLE_NAME": "default",
        "MASTER_ADDR": bootstrap.master_addr if bootstrap else "",
        "MASTER_PORT": bootstrap.master_port if bootstrap else 0,
        "RDZV_ROUND": info.round,
        "RDZV_RESTART_COUNT": restarts,
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_RUN_ID": params.run_id,
        # Also without one: a program may be an agent itself, whose processes are not its own agent's.
        "RDZV_CHANNEL": channel,
    }
    return to_env(params) | {name: str(value) for name, value in values.items()}


@dataclass(frozen=True)
class World:
    """One process's place in the world that its agent got.

    Attributes:
        rank: This process's number among all, from 0.
        world_size: How many processes there are on all nodes.
        local_rank: This process's number on its node.
        local_world_size: How many processes each node has.
        group_rank: The node's rank.
        group_world_size: How many nodes there are.
        round: Which world of the run this is; every new one has a higher number.
        restart_count: How often the agent has started the program anew.
        run_id: Which run.
        master_addr: The address of the node of rank 0.
        master_port: A port there that was free when the round began.
        channel: The path of the file by which this process and its agent talk; empty: they do not.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    round: int
    restart_count: int
    run_id: str
    master_addr: str
    master_port: int
    channel: str = ""

    @cached_property
    def store(self) -> Store:
        """The round's store, shared by all processes; connects when it is first used."""
        params = from_env()
        backend, store = create_backend(params)
        # As the handlers, whose keys this store must find.
        return round_store(run_store(store, with_keys(backend)), params.run_id, self.round)

    def progress(self, step: int) -> None:
        """Report to the agent on this machine that the program goes on, such as once in each step of a training.

        It takes less than a microsecond and asks nothing of the network. An agent with ``--hang-timeout`` takes a
        process that has called this in its round, and does not call it again for so long, for one that hangs. Without
        an agent that listens it does nothing.

        Args:
            step: What the program has done so far, for messages; the same one again is progress, too.

        Raises:
            RendezvousParameterError: The step is not a whole number of 64 bits.
        """
        self._end.progress(step)

    @property
    def drains(self) -> tuple[Drain, ...]:
        """The nodes that are about to leave this world, the first to go first; it is cheap enough for every step."""
        return self._end.drains()

    def ready_to_drain(self) -> None:
        """Say that this process has checkpointed for all `drains` that are known now.

        Once every process of the world has said so, the nodes leave without waiting for their last moment. Without
        drains it does nothing.
        """
        self._end.ready()

    def jax_initialize(self) -> None:
        """Make the processes of this world those of JAX, whose coordinator is rank 0's; before JAX is used otherwise.

        Of several processes of a node, each gets the one device of its local rank.

        Raises:
            ImportError: JAX is not installed.
            RuntimeError: JAX has been used or initialized already, or not all came within its time.
        """
        # The program depends on it, rdzv does not.
        jax: Any = import_module("jax")
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        devices = None if self.local_world_size == 1 else [self.local_rank]
        jax.distributed.initialize(f"{host}:{self.master_port}", self.world_size, self.rank, devices)

    @cached_property
    def _end(self) -> ProcessEnd:
        return ProcessEnd(self.channel)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables that an agent sets.

        Raises:
            RendezvousParameterError: One is missing or is not a number: no agent has started this.
        """

        def number(name: str) -> int:
            try:
                return int(environ[name])
            except (KeyError, ValueError) as error:
                what = f"is {environ[name]!r}, no number" if name in environ else "is not set"
                raise RendezvousParameterError(
                    f"The variable {name} {what}: this process was not started by an agent. "
                    "Start the program with `rdzv run ... -- PROGRAM`."
                ) from error

        return cls(
            rank=number("RANK"),
            world_size=number("WORLD_SIZE"),
            local_rank=number("LOCAL_RANK"),
            local_world_size=number("LOCAL_WORLD_SIZE"),
            group_rank=number("GROUP_RANK"),
            group_world_size=number("GROUP_WORLD_SIZE"),
            round=number("RDZV_ROUND"),
            restart_count=number("RDZV_RESTART_COUNT"),
            run_id=environ.get("RDZV_RUN_ID", ""),
            master_addr=environ.get("MASTER_ADDR", ""),
            master_port=number("MASTER_PORT"),
            channel=environ.get("RDZV_CHANNEL", ""),
        )


@cache
def current() -> World:
    """This process's rank, world and store, as the agent that started it has set them.

    The environment is read in the first call; every other returns the same world. A process that was forked since has
    one of its own. `World.from_env` reads the environment anew.

    Raises:
        RendezvousParameterError: No agent has started this process.
    """
    return World.from_env(os.environ)


os.register_at_fork(after_in_child=current.cache_clear)
