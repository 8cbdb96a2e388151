"""Lines that were written for torchrun: what its options are here that have no equal of the same name."""

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from rdzv.settings import HANDLER_OPTIONS
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import with_files
from rdzv_core.plugins import load_backend_plugin
from rdzv_core.text import printable

from .launch import ALONE, HOSTED, in_brackets
from .platforms.torch import backend


@dataclass(frozen=True)
class Option:
    """An option of torchrun's.

    Attributes:
        ours: The option that it is here; empty: there is none, and the line runs without it.
        why: Why that is so, or what counts.
        is_switch: Whether it takes no value.
    """

    ours: str = ""
    why: str = ""
    is_switch: bool = False


RENAMED: Final = {"--shutdown-timeout": "--grace", "--log-line-prefix-template": "--prefix"}
"""What only has another name here."""

OPTIONS: Final = {
    "--rdzv-backend": Option("--backend", "c10d and etcd-v2 as there, etcd is etcd-v2; static is c10d"),
    "--rdzv-endpoint": Option("--endpoint", "localhost:0 is --standalone"),
    "--rdzv-id": Option("--run-id"),
    "--rdzv-conf": Option("--option", "each NAME=VALUE that has a meaning here; timeout is join_timeout"),
    "--master-addr": Option("--endpoint", "with --master-port, where several nodes are to meet"),
    "--node-rank": Option(why="each world gives its nodes their ranks"),
    "--run-path": Option(why="Python runs the file", is_switch=True),
    "--monitor-interval": Option(why="an agent knows at once when a process ends"),
    "--start-method": Option(why="each process is a program of its own"),
    "--event-log-handler": Option(why="hooks get what happens"),
    "--duplicate-stdout-filters": Option(why="files and console have all lines"),
    "--duplicate-stderr-filters": Option(why="files and console have all lines"),
    "--logs-specs": Option(why="output goes where --log-dir, --redirects and --tee say"),
    "--numa-binding": Option(why="processes are bound to no CPUs"),
    "--virtual-local-rank": Option(why="each process has its own LOCAL_RANK", is_switch=True),
}
"""All others, by their names with hyphens."""

_STATIC_PORT: Final = "29500"
_RUN_ID: Final = "none"
"""torchrun's own, where none is given."""

_ETCD: Final = {"cacert": "ca_cert", "cert": "ssl_cert", "key": "ssl_cert_key"}
"""How etcd-v2 calls options of torchrun's etcd."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add its options; the help does not show them."""
    for name, option in OPTIONS.items():
        more: dict[str, Any] = {"action": "store_true"} if option.is_switch else {}
        parser.add_argument(name, dest=_dest(name), default=None, help=argparse.SUPPRESS, **more)


def _dest(name: str) -> str:
    return f"torchrun_{name[2:].replace('-', '_')}"


class Line:
    """A command line, as far as it was written for torchrun.

    Attributes:
        left_out: What it runs without, each with the reason.
        run_id: The run, if one was named by ``--rdzv-id``.
    """

    def __init__(self, arguments: argparse.Namespace, given: Collection[str]) -> None:
        """Take it over into the options of `rdzv run`.

        Args:
            arguments: The command line, with what variables and a file say; is changed.
            given: The options of rdzv's that a flag gives.

        Raises:
            RendezvousParameterError: It says the same twice, or cannot be read.
        """
        self._arguments = arguments
        self._given = given
        self._theirs = {name: value for name in OPTIONS if (value := getattr(arguments, _dest(name))) is not None}
        self.left_out = [f"{name} ({OPTIONS[name].why})" for name in self._theirs if not OPTIONS[name].ours]
        self.run_id = self._take("--rdzv-id")
        self._conf = _items(self._theirs.get("--rdzv-conf", ""))
        self._take_place()
        if "--rdzv-endpoint" in self._theirs and "master_port" in given:
            arguments.master_port = None
            self.left_out.append("--master-port (torchrun uses none beside --rdzv-endpoint)")
        self._take_conf()

    @property
    def _is_of_several(self) -> bool:
        """Whether it is one of several nodes'; torchrun takes one where none says how many."""
        return self._arguments.nnodes not in (None, *ALONE)

    def default_run_id(self) -> str | None:
        """torchrun's own where a store is new in each run; None: it would be closed when it is used again."""
        return _RUN_ID if self._arguments.backend == HOSTED else None

    def _take(self, name: str) -> str | None:
        """Have an option be that of `rdzv run`, of which no flag may say another thing."""
        if (value := self._theirs.get(name)) is None:
            return None
        ours = OPTIONS[name].ours[2:].replace("-", "_")
        if ours in self._given:
            raise RendezvousParameterError(f"{name} is {OPTIONS[name].ours}, which is given, too: leave one out.")
        setattr(self._arguments, ours, value)
        return str(value)

    def _take_place(self) -> None:
        named = self._take("--rdzv-backend")
        if named is not None:
            self._arguments.backend = self._backend(named)
        endpoint = self._take("--rdzv-endpoint") or self._static_endpoint()
        if endpoint and self._arguments.backend is None:
            self._arguments.backend = HOSTED
        if named is not None or endpoint:
            self._stand_alone_where_none_else_comes(endpoint or "")

    def _static_endpoint(self) -> str | None:
        """Where nodes meet that torchrun's static rendezvous would bring together."""
        if (address := self._theirs.get("--master-addr")) is None:
            return None
        if self._arguments.backend or self._arguments.endpoint or not self._is_of_several:
            self.left_out.append("--master-addr (each world has its own MASTER_ADDR)")
            return None
        endpoint = f"{in_brackets(address)}:{self._arguments.master_port or _STATIC_PORT}"
        self._arguments.endpoint, self._arguments.master_port = endpoint, None
        return endpoint

    def _backend(self, named: str) -> str | None:
        if named == "rdzv":
            return self._conf.pop("plugin", None)
        return backend(named)

    def _stand_alone_where_none_else_comes(self, endpoint: str) -> None:
        """A store of one node that no other can find is no service."""
        hidden = endpoint.rpartition(":")[2] == "0" or not endpoint
        if self._arguments.backend == HOSTED and hidden and not self._is_of_several:
            self._arguments.standalone = True
        if self._arguments.standalone and self._arguments.backend == HOSTED:
            self._arguments.backend = self._arguments.endpoint = None

    def _take_conf(self) -> None:
        if not self._conf:
            return
        backend = self._arguments.backend
        renamed = {"timeout": "join_timeout", **(_ETCD if self._theirs.get("--rdzv-backend") == "etcd" else {})}
        options = (*HANDLER_OPTIONS, *(load_backend_plugin(backend).options if backend else ()))
        known = {option.name for option in with_files(options)}
        ours = {renamed.get(name, name): value for name, value in self._conf.items()}
        self._arguments.option = [
            *(f"{name}={value}" for name, value in ours.items() if name in known),
            *self._arguments.option,
        ]
        if unknown := [name for name in ours if name not in known]:
            self.left_out.append(f"{', '.join(map(printable, unknown))} of --rdzv-conf (no option here)")


def _items(conf: str) -> dict[str, str]:
    """The items of ``--rdzv-conf``, read as torchrun does."""
    pairs = [item.strip().partition("=") for item in conf.split(",") if item.strip()]
    if wrong := [name for name, equals, value in pairs if not (name and equals and value)]:
        raise RendezvousParameterError(
            f"--rdzv-conf takes NAME=VALUE,NAME=VALUE; '{printable(wrong[0])}' has no value."
        )
    return {name.strip(): value.strip() for name, _, value in pairs}
