import re
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters

from rdzv.settings import HANDLER_OPTIONS, RendezvousSettings, RendezvousTimeout


def read(**options: Any) -> RendezvousSettings:
    return RendezvousSettings.from_parameters(RendezvousParameters("b", "", "job-7", 2, 4, **options))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_timeouts_have_pytorchs_defaults() -> None:
    timeout = RendezvousTimeout()
    assert (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat, timeout.alone) == (
        seconds(600), seconds(30), seconds(30), seconds(5), seconds(60),
    )  # fmt: skip
    assert RendezvousTimeout(None, seconds(1)) == RendezvousTimeout(last_call=seconds(1))
    assert timeout != RendezvousTimeout(last_call=seconds(1))


def test_timeouts_are_taken_in_pytorchs_order() -> None:
    timeout = RendezvousTimeout(seconds(1), seconds(2), seconds(3), seconds(4))
    assert (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat) == (
        seconds(1), seconds(2), seconds(3), seconds(4),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat"])
@pytest.mark.parametrize("number", [0, -1])
def test_a_timeout_is_above_zero(name: str, number: int) -> None:
    message = f"The {name} timeout ({seconds(number)}) must be positive."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RendezvousTimeout(**{name: seconds(number)})


def test_a_timeout_does_not_change() -> None:
    with pytest.raises(AttributeError):
        RendezvousTimeout().join = seconds(1)  # type: ignore[misc]


def test_settings_take_pytorchs_arguments() -> None:
    settings = RendezvousSettings(
        run_id="r",
        min_nodes=3,
        max_nodes=3,
        timeout=RendezvousTimeout(),
        keep_alive_interval=seconds(30),
        keep_alive_max_attempt=3,
    )
    assert settings == RendezvousSettings("r", 3, 3, RendezvousTimeout(), seconds(30), 3)
    assert (settings.attempt, settings.on_shutdown, settings.node_name, settings.labels) == (0, "auto", None, {})
    hash(settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_id": ""}, "The run id must be a non-empty string."),
        ({"min_nodes": 0}, "The minimum number of nodes (0) must be greater than zero."),
        (
            {"max_nodes": 2},
            "The maximum number of nodes (2) must be greater than or equal to the minimum number of nodes (3).",
        ),
        ({"keep_alive_interval": seconds(0)}, "The keep_alive_interval (0:00:00) must be positive."),
        ({"keep_alive_max_attempt": 0}, "The keep_alive_max_attempt (0) must be greater than zero."),
        (
            {"cas_backoff_max_seconds": -1.0},
            "The cas_backoff_max_seconds (-1.0) must be finite and not negative.",
        ),
        (
            {"cas_backoff_max_seconds": float("inf")},
            "The cas_backoff_max_seconds (inf) must be finite and not negative.",
        ),
        ({"attempt": -1}, "The attempt (-1) must not be negative."),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "run_id": "r",
        "min_nodes": 3,
        "max_nodes": 3,
        "timeout": RendezvousTimeout(),
        "keep_alive_interval": seconds(5),
        "keep_alive_max_attempt": 3,
    }
    with pytest.raises(RendezvousParameterError, match=f"^{re.escape(message)}$"):
        RendezvousSettings(**{**good, **change})


def test_without_options_everything_has_its_default() -> None:
    assert read() == RendezvousSettings("job-7", 2, 4, RendezvousTimeout(), seconds(5), 3)
    assert read() == RendezvousSettings("job-7", 2, 4, RendezvousTimeout())
    assert (read().wanted_timeout, read().grow_delay) == (seconds(120), seconds(0))
    assert (read().quarantine_after, read().quarantine_cooldown) == (3, seconds(60))
    assert read(join_timeout=None, keep_alive_interval=None, labels=None) == read()


def test_every_option_of_rdzv_is_read() -> None:
    given: dict[str, Any] = {
        "join_timeout": "50",
        "last_call_timeout": "0.5",
        "close_timeout": 70,
        "heartbeat_timeout": 1.5,
        "alone_timeout": 20,
        "refused_timeout": 90,
        "keep_alive_interval": "0.25",
        "keep_alive_max_attempt": "4",
        "cas_backoff_max_seconds": "0.5",
        "attempt": "2",
        "on_shutdown": "leave",
        "node_name": "node2",
        "labels": "rack=7;zone=a",
        "node_unit": "2",
        "sizes": "4/2",
        "group_by": "rack",
        "group_size": "1",
        "wanted": "4",
        "wanted_timeout": "7",
        "grow_delay": "3",
        "quarantine_after": "2",
        "quarantine_cooldown": "1.5",
        "master_port": 29500,
        "behind_nat": "yes",
        "timeout": None,
    }
    assert given.keys() == {option.name for option in HANDLER_OPTIONS}
    assert read(**given) == RendezvousSettings(
        "job-7",
        2,
        4,
        RendezvousTimeout(seconds(50), seconds(0.5), seconds(70), seconds(1.5), seconds(20), seconds(90)),
        seconds(0.25),
        4,
        0.5,
        2,
        "leave",
        "node2",
        {"rack": "7", "zone": "a"},
        2,
        (2, 4),
        "rack",
        1,
        4,
        seconds(7),
        seconds(3),
        2,
        seconds(1.5),
        "29500",
        True,
    )


def test_labels_may_be_a_mapping() -> None:
    assert read(labels={"rack": 7}).labels == {"rack": "7"}


def test_what_torchrun_adds_and_what_a_backend_knows_is_left_alone() -> None:
    assert read(timeout=900, tls="yes") == read()


@pytest.mark.parametrize(
    "name", [option.name for option in HANDLER_OPTIONS if option.name not in ("node_name", "labels", "group_by")]
)
def test_an_impossible_value_names_the_option(name: str) -> None:
    with pytest.raises(RendezvousParameterError, match=f"'{name}'"):
        read(**{name: "soon"})
