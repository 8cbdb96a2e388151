"""What rdzv sets out to reach, and whether it did, in one run on one machine."""

from collections.abc import Iterator

from .rows import ROWS
from .samples import Samples

__all__ = ["targets"]

_FASTER = 10.0
_FASTER_SIZES = (2, 8, 32, 128)
_CALLS = 6.0
_SAME = 1.2
"""How far two figures may be apart that are meant to be the same."""


def targets(samples: Samples) -> list[tuple[str, str, str]]:
    """Target, what was measured, and "met" or by how much it was missed, for all that was measured."""
    return [
        *_against_pytorch(samples),
        *_against_nvidia(samples),
        *_round_two(samples),
        *_calls(samples),
        *_idle(samples),
    ]


def _against_pytorch(samples: Samples) -> Iterator[tuple[str, str, str]]:
    for service in ("c10d", "etcd-v2"):
        for nodes in _FASTER_SIZES:
            target = f"{nodes} nodes gather {_FASTER:g} times faster than PyTorch's on {service}"
            yield from _times(samples, target, f"pytorch/{service}", f"rdzv/{service}", nodes, _FASTER)


def _against_nvidia(samples: Samples) -> Iterator[tuple[str, str, str]]:
    for nodes in samples.sizes("gather"):
        target = f"{nodes} nodes gather faster than NVIDIA's barrier"
        yield from _times(samples, target, "nvidia/c10d", "rdzv/c10d", nodes, 1.0)


def _times(
    samples: Samples, target: str, theirs: str, ours: str, nodes: int, wanted: float
) -> Iterator[tuple[str, str, str]]:
    mine = samples.median(ours, "gather", nodes)
    their = samples.median(theirs, "gather", nodes)
    if mine is None:
        return
    if their is None:
        if reason := samples.reason(theirs, "gather", nodes):
            yield target, f"{mine:.3f} s; theirs: {reason}", "met"
        return
    ratio = their / mine
    yield target, f"{their:.3f} s / {mine:.3f} s = {ratio:.1f}", _judge(ratio >= wanted, f"{ratio:.1f} of {wanted:g}")


def _round_two(samples: Samples) -> Iterator[tuple[str, str, str]]:
    for row, nodes in _ours(samples, "again-gather"):
        first, second = samples.median(row, "gather", nodes), samples.median(row, "again-gather", nodes)
        if first is not None and second is not None:
            measured = f"{second:.3f} s after {first:.3f} s"
            met = _judge(second <= first * _SAME, f"{second / first:.1f} times as long")
            yield f"{row}: round two of {nodes} nodes as fast as round one", measured, met


def _calls(samples: Samples) -> Iterator[tuple[str, str, str]]:
    for measure, number in (("calls", "one"), ("again-calls", "two")):
        for row, nodes in _ours(samples, measure):
            calls = samples.median(row, measure, nodes)
            if calls is not None:
                met = _judge(calls <= _CALLS, f"{calls - _CALLS:.1f} too many")
                yield f"{row}: at most {_CALLS:g} calls per node in round {number} of {nodes}", f"{calls:.1f}", met


def _idle(samples: Samples) -> Iterator[tuple[str, str, str]]:
    sizes = samples.sizes("idle-calls")
    for row in ROWS:
        few, many = (
            (samples.median(row, "idle-calls", size) for size in (sizes[0], sizes[-1])) if sizes else (None, None)
        )
        if ROWS[row].ours and few is not None and many is not None and sizes[0] != sizes[-1]:
            measured = f"{few:.2f} and {many:.2f} calls/s"
            met = _judge(many <= few * _SAME, f"{many / max(few, 1e-9):.1f} times as many")
            yield f"{row}: idle, each of {sizes[-1]} nodes asks no more than each of {sizes[0]}", measured, met


def _ours(samples: Samples, measure: str) -> Iterator[tuple[str, int]]:
    for row in samples.rows(measure):
        if ROWS[row].ours:
            for nodes in samples.sizes(measure):
                yield row, nodes


def _judge(met: bool, otherwise: str) -> str:
    return "met" if met else f"missed: {otherwise}"
