"""Draws README's figures from the record of a real run: `python docs/make_figures.py RUN [NAME]`.

`learning-curve.png`: reward, held-out accuracy and response length over versions. `terminal.svg`: the live view as it
stood at the run's end. With a NAME the curve alone, as `NAME.png`.
"""

import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console

from headrace.observe.run_record import RunRecord, RunWatcher
from headrace.store import RunReader
from headrace.viewer.terminal.live import render
from headrace.viewer.terminal.snapshot import take_snapshot

FOLDER = Path(__file__).parent / "figures"
WIDTH, HEIGHT = 100, 30


def draw_curve(run: RunRecord, path: Path) -> None:
    versions = [batch.batch for batch in run.batches]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(
        versions, [batch.reward_mean for batch in run.batches], color="#4c9ab5", label="reward of training samples"
    )
    left.plot(
        [evaluation.number for evaluation in run.evaluations],
        [evaluation.score for evaluation in run.evaluations],
        "o-",
        color="#c2593f",
        label="held-out accuracy, greedy",
    )
    left.set(xlabel="version", ylim=(0, 1.03))
    left.legend(frameon=False, loc="lower right")
    right.plot(versions, [batch.response_tokens_mean for batch in run.batches], color="#6a8f3f")
    right.set(xlabel="version", ylabel="response tokens, mean", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def draw_terminal(run: RunRecord, path: Path) -> None:
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    console.print(render(take_snapshot(run), WIDTH, HEIGHT))
    console.save_svg(str(path), title="headrace train quickstart/grpo.yaml")


def main() -> None:
    with RunReader(Path(sys.argv[1])) as reader:
        run = RunWatcher(reader).read()
    FOLDER.mkdir(exist_ok=True)
    if len(sys.argv) > 2:
        draw_curve(run, FOLDER / f"{sys.argv[2]}.png")
        return
    draw_curve(run, FOLDER / "learning-curve.png")
    draw_terminal(run, FOLDER / "terminal.svg")


if __name__ == "__main__":
    main()
