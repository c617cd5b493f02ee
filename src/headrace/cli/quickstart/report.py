"""What came of the quickstart, on one screen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.called_as import program
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import Evaluation, RunRecord

_ROWS = 8
"""Lines of the learning curve."""
_BAR = 30


def render_report(run: RunRecord, seconds: float) -> RenderableType:
    """`seconds`: of the whole quickstart."""
    before, after = run.evaluations[0], run.evaluations[-1]
    return Group(
        Text(),
        Text("The learning curve (rewards are of training samples, drawn with temperature)", style="bold"),
        _curve(run),
        Text(),
        Text(f"Held out: {after.prompts} prompts that were never trained on, answered greedily", style="bold"),
        _held_out(run.evaluations),
        Text(),
        Text("The same prompt, before and after", style="bold"),
        _samples(before, after),
        Text(),
        Text(
            f"{run.number} versions in {run.totals.elapsed_s:.0f} s; the whole quickstart took {seconds:.0f} s.\n"
            "The model was taught to blurt answers out. The reward, which sees only the last digit, taught it to work."
        ),
    )


def render_next_steps(folder: Path, model: Path, plot: Path) -> Text:
    """`plot`: the page with the run's curves. To be printed without wrapping, so that every command can be copied."""
    config = folder / "grpo.yaml"
    rows: list[tuple[list[object], str]] = [
        ([plot], "the run's curves: open it in a browser"),
        ([*program(), "inspect", folder / "run"], "the run's record: time, staleness, waits"),
        ([*program(), "rollouts", folder / "run", "--worst"], "what the policy wrote, its worst answers first"),
        ([*program(), "eval", config], "score what training began with on the held-out prompts, as was done before it"),
        ([*program(), "eval", config, "--model", model], "the same for what was trained, as was done after it"),
        ([*program(), "check", config], "the dataflow, the roles and the memory of this job"),
        ([*program(), "serve", model], "talk to what was trained, over HTTP"),
        ([config], "the config: put in your own model, data and reward"),
    ]
    text = Text("Where to look next", style="bold")
    for words, meaning in rows:
        text.append("\n")
        text.append(shlex.join(map(str, words)), style="not bold cyan")
        text.append(f"\n    {meaning}", style="not bold")
    return text


def _curve(run: RunRecord) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(*(Text(name, style="dim") for name in ("versions", "reward", "", "response tokens", "staleness")))
    count = len(run.batches)
    rows = min(_ROWS, count)
    for row in range(rows):
        part = run.batches[row * count // rows : (row + 1) * count // rows]
        reward = sum(batch.reward_mean for batch in part) / len(part)
        length = sum(batch.response_tokens_mean for batch in part) / len(part)
        table.add_row(
            f"v{part[0].batch} .. v{part[-1].batch}",
            f"{reward:.2f}",
            Text("█" * round(_BAR * max(min(reward, 1.0), 0.0)), style="green"),
            f"{length:.1f}",
            f"{_mean_staleness(part):.2f}",
        )
    return table


def _mean_staleness(batches: tuple[BatchRecord, ...]) -> float:
    tokens = sum(count for batch in batches for count in batch.staleness.values())
    return sum(age * count for batch in batches for age, count in batch.staleness.items()) / max(tokens, 1)


def _held_out(evaluations: Sequence[Evaluation]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(*(Text(name, style="dim") for name in ("version", "accuracy", "", "response tokens")))
    for evaluation in evaluations:
        score = evaluation.score or 0.0
        table.add_row(
            f"v{evaluation.number}",
            f"{score:.3f}",
            Text("█" * round(_BAR * max(min(score, 1.0), 0.0)), style="blue"),
            f"{evaluation.response_tokens_mean:.1f}",
        )
    return table


def _samples(before: Evaluation, after: Evaluation) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for was, now in zip(before.samples, after.samples, strict=True):
        table.add_row(Text(str(was["prompt"])), _answer(was), "->", _answer(now))
    return table


def _answer(sample: Mapping[str, Any]) -> Text:
    right = sample["reward"] is not None and sample["reward"] > 0
    return Text(str(sample["response"]), style="green" if right else "red")
