"""The samples as pictures."""

from pathlib import Path

from .rows import ROWS
from .samples import Samples

__all__ = ["PICTURES", "draw"]

_STYLES = {"rdzv": "-o", "pytorch": "--s", "nvidia": ":^"}

PICTURES = {
    "gather": ("gather", "seconds until all nodes have their world"),
    "round-two": ("again-gather", "seconds until all nodes are back, round two"),
    "calls": ("calls", "calls to the service per node, round one"),
}
"""The pictures, by name: a measure, and what it is in words. The first one stands at the top of the page."""


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
        # The floors stand in the tables: a dozen lines are enough.
        if points and (style := _STYLES.get(ROWS[row].project)):
            axes.plot(*zip(*points, strict=True), style, label=row, linewidth=1.5, markersize=5)
    axes.set(xscale="log", yscale="log", xlabel="nodes that call at once", ylabel=label)
    axes.set_xticks(samples.sizes(measure), [str(size) for size in samples.sizes(measure)])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
