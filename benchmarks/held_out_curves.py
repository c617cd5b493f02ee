"""Held-out curves of several seeds, read from runs, and drawn as bands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader

ROOT = Path(__file__).parents[1]
Curve = list[tuple[int, float]]
"""(version, score), in order."""


def command(*arguments: str, cwd: Path) -> None:
    """A Python program of this tree. Raises CalledProcessError, with its words on standard error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, check=True, timeout=3600, stdout=subprocess.DEVNULL
    )


def curve(run: Path) -> Curve:
    with RunReader(run) as reader:
        found = RunWatcher(reader).read().evaluations
    return [(each.number, each.score) for each in found if each.score is not None]


def draw(sides: Mapping[str, Sequence[Curve]], path: Path, ylabel: str) -> None:
    """Each side's mean over its seeds, and from its least to its most."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for (name, curves), colour in zip(sides.items(), ("#c2593f", "#4c9ab5", "#6a8f3f"), strict=False):
        versions = [number for number, _ in curves[0]]
        scores = [[each[place][1] for each in curves] for place in range(len(versions))]
        axes.plot(versions, [sum(row) / len(row) for row in scores], "o-", color=colour, label=name, markersize=3)
        axes.fill_between(versions, list(map(min, scores)), list(map(max, scores)), color=colour, alpha=0.2, lw=0)
    axes.set(xlabel="version", ylabel=ylabel, ylim=(0, 1.03))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
