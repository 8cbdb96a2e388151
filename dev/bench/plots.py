"""The samples as plots: pictures, and bars of text."""

import math
from collections.abc import Callable
from pathlib import Path

from .rows import ROWS
from .samples import Samples

__all__ = ["PICTURES", "bars", "draw"]

_WIDTH = 48
_STYLES = {"rdzv": "-o", "pytorch": "--s", "nvidia": ":^"}

PICTURES = {
    "gather": ("gather", "seconds until all nodes have their world"),
    "round-two": ("again-gather", "seconds until all nodes are back, round two"),
    "calls": ("calls", "calls to the service per node, round one"),
}
"""The pictures, by name: a measure, and what it is in words."""


def draw(samples: Samples, folder: Path) -> list[Path]:
    """Draw every picture for which there is something; returns the files."""
    return [_draw(samples, folder / f"{name}.png", *what) for name, what in PICTURES.items() if samples.rows(what[0])]


def _draw(samples: Samples, path: Path, measure: str, label: str) -> Path:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for row in samples.rows(measure):
        points = [(size, value) for size in samples.sizes(measure) if (value := samples.median(row, measure, size))]
        if points:
            axes.plot(*zip(*points, strict=True), _STYLES[ROWS[row].project], label=row, linewidth=1.5, markersize=5)
    axes.set(xscale="log", yscale="log", xlabel="nodes that call at once", ylabel=label)
    axes.set_xticks(samples.sizes(measure), [str(size) for size in samples.sizes(measure)])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def bars(samples: Samples, measure: str, label: str) -> str:
    """Bars of text on a logarithmic scale, a group for each number of nodes."""
    medians = {
        (row, size): value
        for size in samples.sizes(measure)
        for row in samples.rows(measure)
        if (value := samples.median(row, measure, size))
    }
    if not medians:
        return ""
    length = _scale(min(medians.values()), max(medians.values()))
    lines = [f"{label} (logarithmic)"]
    for size in samples.sizes(measure):
        lines.append(f"{size} nodes")
        for row in samples.rows(measure):
            value, reason = medians.get((row, size)), samples.reason(row, measure, size)
            if value:
                lines.append(f"  {row:16} {'#' * length(value)} {value:.3g}")
            elif reason:
                lines.append(f"  {row:16} {reason}")
    return "\n".join([*lines, ""])


def _scale(low: float, high: float) -> Callable[[float], int]:
    bottom = math.floor(math.log10(low))
    top = max(bottom + 1, math.log10(high))
    return lambda value: max(1, round((math.log10(value) - bottom) / (top - bottom) * _WIDTH))
