"""Writes docs/metrics.md from the table of metrics: `python docs/make_metrics.py`."""

from collections.abc import Sequence
from pathlib import Path

from headrace.observe import spent
from headrace.observe.metrics import EPOCH, SUMMARY, TOTALS, Metric, offline
from headrace.observe.metrics import batch as rows

HEAD = """# Metrics

Every number that a run records: what it means, when to worry, what to do. Where a row has an alarm (**bold**), the
live view and `headrace inspect` show it as long as it rings, and the plain lines once when it begins to. This page is
made from `src/headrace/observe/metrics/` by `python docs/make_metrics.py`; the rules by which alarms ring, with the
reason of each number, are in `src/headrace/observe/alarms.py`.

`headrace inspect RUN --batches` prints the record of each batch, a JSON object a line, `headrace inspect RUN --json`
what `summary.json` holds. A share is from 0 to 1. What was not measured is null, and so is what is not
finite, as a loss that is NaN.

"""
PARTS: dict[str, tuple[Metric, ...]] = {
    "## A batch: rewards": rows.REWARDS,
    "## A batch: the step": rows.STEP,
    "### Each of `epochs`": EPOCH,
    "## A batch: off-policy correction": rows.CORRECTION,
    "## A batch: staleness and the queue": rows.STALENESS,
    "## A batch: sizes": rows.SIZES,
    "## A batch: what was lost": rows.LOST,
    "## A batch: times": rows.TIMES,
    "### `totals`, of a process": TOTALS,
}
"""Sections, with their rows."""
OFFLINE_PARTS: dict[str, tuple[Metric, ...]] = {
    "## `sft`, `rm` and `dpo`: a step": offline.OFFLINE_STEP,
    "### `measured`": offline.MEASURED,
    "## `sft`, `rm` and `dpo`: held-out rows": offline.OFFLINE_EVALUATION,
    "## `sft`, `rm` and `dpo`: `summary.json`": offline.OFFLINE_SUMMARY,
}
"""Of the offline trainers."""
NAMES = {
    "trainer": {
        spent.TRAINS: "the optimiser's steps, and what goes with them",
        spent.SCORES: "passes of a `hybrid` reference or proximal policy, on the trainer's weights and its time",
        spent.PUBLISHES: "hands a new version over",
        spent.CHECKPOINTS: "writes one",
        spent.GENERATION: "the batch is not full, and the engines compute",
        spent.REWARDS: "the batch is not full, and no engine has anything to do: rewards, environments, judges and "
        "workflows have",
        spent.COLUMNS: "the batch is full, and scoring models, stages of yours or advantages are not done with it",
        spent.CRITIC: "the critic's own steps on the batch",
        spent.NEW_WEIGHTS: (
            "the batch is not full, and nothing more may start until the engines have the newest version"
        ),
        spent.EVALUATION: "an evaluation holds the engines",
        spent.OTHER: "starting, ending, and what lies between two calls",
    },
    "engines": {
        spent.COMPUTES: "prefill and decoding, of rollouts and evaluations",
        spent.SWAPS: "the exchange of weights, and prefill of what it interrupted",
        f"{spent.TRAINER} (max_staleness)": "nothing more may start before the next version",
        f"{spent.TRAINER} (ahead)": "as many groups as may be are finished and wait for a batch",
        f"{spent.TRAINER} (table_gib)": "the same, in bytes",
        spent.NEW_WEIGHTS: "the next version is there, and on its way to them",
        spent.REWARDS: "groups run, and none of them asks for tokens: rewards, environments, judges and workflows have "
        "something to do",
        spent.NO_PROMPTS: "the run's last batches are being trained",
        spent.OTHER: "starting, ending, and between two calls; in `sync` also waiting for their turn on the processors",
    },
}
"""Of `trainer_s` and `engines_s`."""


def page() -> str:
    """The whole page."""
    lines = [HEAD.rstrip("\n"), ""]
    for title, metrics in PARTS.items():
        lines += [title, "", *_table(metrics)]
    for side, names in NAMES.items():
        lines += [f"### Names in `{side}_s`", "", "| name | what |", "|---|---|"]
        lines += [f"| `{name}` | {what} |" for name, what in names.items()]
        lines.append("")
    lines += ["## `summary.json`", "", "The names are stable.", "", *_table(SUMMARY)]
    for title, metrics in OFFLINE_PARTS.items():
        lines += [title, "", *_table(metrics)]
    return "\n".join(lines)


def _table(metrics: Sequence[Metric]) -> list[str]:
    lines = ["| name | unit | meaning | when to worry | what to do |", "|---|---|---|---|---|"]
    for metric in metrics:
        worry = f"**{metric.worry}**" if metric.rule is not None else metric.worry
        cells = (f"`{metric.name}`", metric.unit, metric.meaning, worry, metric.act)
        lines.append("| " + " | ".join(cell.replace("|", chr(92) + "|") for cell in cells) + " |")
    return [*lines, ""]


if __name__ == "__main__":
    (Path(__file__).parent / "metrics.md").write_text(page())
