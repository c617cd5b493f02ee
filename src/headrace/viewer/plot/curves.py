"""What a picture shows of a run: its panels, and the curves of each as the record has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.config.evaluation import PLAIN
from headrace.observe.record import BatchRecord, Totals
from headrace.observe.run_record import Evaluation, RunRecord
from headrace.viewer.plot.marks import DASHES
from headrace.viewer.plot.points import Curve, is_empty, point

Axis = Literal["batch", "time"]
"""`batch`: versions made. `time`: seconds that the run's processes ran, one after another."""

MOST_METRICS = len(DASHES)
"""Of one set, in a picture: more lines could not be told apart."""
_WAITED = "actor: rows of the batch"


@dataclass(frozen=True, slots=True)
class Lately:
    """What the process of a batch did since the batch before, or since it began."""

    elapsed_s: float
    generated_tokens: int
    generated_samples: int
    engine_busy_s: float
    waited_s: float
    """That the trainer waited for rows of the batch."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of line in a panel. Its value may be None: not measured."""

    name: str
    """Beside other lines of the panel; empty if it is the only one."""
    of: Callable[[BatchRecord, Lately], float | None]


@dataclass(frozen=True, slots=True)
class Panel:
    key: str
    title: str
    unit: str
    measures: tuple[Measure, ...]
    from_zero: bool = False
    """Whether its axis begins at 0 whatever the values are."""
    dots: bool = False
    """Whether each value is marked."""
    if_any: bool = False
    """Whether nothing but zeros is no data."""
    of_set: str | None = None
    """Name of the held-out set whose evaluations it shows, instead of batches."""


def panels(runs: Iterable[RunRecord]) -> tuple[Panel, ...]:
    """All that a picture of these runs may have, in its order; a term of the reward, and a source of prompts, has a
    panel of its own."""
    runs = tuple(runs)
    terms = {name: None for run in runs for batch in run.batches for name in batch.reward_terms}
    sources = {name: None for run in runs for batch in run.batches for name in batch.reward_sources}
    labels: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, evaluations in run.sets.items():
            metrics = labels.setdefault(name, {})
            metrics.update(dict.fromkeys(metric for each in evaluations for metric in each.metrics))
    first, *others = _PANELS
    return (
        first,
        *(_evaluation(name, tuple(metrics)[:MOST_METRICS]) for name, metrics in labels.items()),
        *others,
        *(Panel(f"term:{name}", f"reward: {name}", "mean, before it is weighted", (_term(name),)) for name in terms),
        *(Panel(f"source:{name}", f"reward: {name}", "mean of its prompts", (_source(name),)) for name in sources),
    )


def curves(run: RunRecord, shown: Iterable[Panel], by: Axis) -> dict[str, Mapping[str, Curve]]:
    """By key of the panel the curves of its measures by name: those of which anything was measured."""
    times = _times(run)
    lately = _lately(run.batches)
    xs = [float(batch.batch + 1) if by == "batch" else times[batch.batch + 1] for batch in run.batches]
    found: dict[str, Mapping[str, Curve]] = {}
    for panel in shown:
        by_name = (
            _evaluations(run.sets.get(panel.of_set, ()), panel, times, by)
            if panel.of_set is not None
            else {
                measure.name: tuple(
                    point(x, measure.of(batch, since)) for x, batch, since in zip(xs, run.batches, lately, strict=True)
                )
                for measure in panel.measures
            }
        )
        none = panel.if_any and not any(at.y for curve in by_name.values() for at in curve)
        found[panel.key] = {} if none else {name: curve for name, curve in by_name.items() if not is_empty(curve)}
    return found


def _evaluations(
    evaluations: Iterable[Evaluation], panel: Panel, times: Mapping[int, float], by: Axis
) -> dict[str, Curve]:
    """Each where its version was made; of one version, the last."""
    known = {each.number: each for each in evaluations if each.number == 0 or each.number in times}
    xs = {number: float(number) if by == "batch" else times.get(number, 0.0) for number in sorted(known)}
    return {
        measure.name: tuple(point(x, _metric(known[number], measure.name)) for number, x in xs.items())
        for measure in panel.measures
    }


def _metric(evaluation: Evaluation, name: str) -> float | None:
    """The score, if `name` is empty."""
    if not name:
        return evaluation.score
    return evaluation.metrics[name].value if name in evaluation.metrics else None


def _times(run: RunRecord) -> dict[int, float]:
    """When each version was made, in seconds. Work that a restore took back took its time, too."""
    began = {
        branch: sum(run.processes[earlier].elapsed_s for earlier in run.processes if earlier < branch)
        for branch in {batch.branch for batch in run.batches}
    }
    return {batch.batch + 1: began[batch.branch] + batch.totals.elapsed_s for batch in run.batches}


def _lately(batches: Iterable[BatchRecord]) -> list[Lately]:
    found, branch, before = [], -1, Totals()
    for batch in batches:
        if batch.branch != branch:
            branch, before = batch.branch, Totals()
        now = batch.totals
        found.append(
            Lately(
                now.elapsed_s - before.elapsed_s,
                now.generated_tokens - before.generated_tokens,
                now.generated_samples - before.generated_samples,
                now.engine_busy_s - before.engine_busy_s,
                now.wait_s.get(_WAITED, 0.0) - before.wait_s.get(_WAITED, 0.0),
            )
        )
        before = now
    return found


def _trained(read: Callable[[BatchRecord], float | None]) -> Callable[[BatchRecord, Lately], float | None]:
    """A mean over trained tokens: of none it says nothing."""
    return lambda batch, lately: read(batch) if batch.trained_tokens else None


def _term(name: str) -> Measure:
    return Measure("", lambda batch, lately: batch.reward_terms.get(name))


def _source(name: str) -> Measure:
    return Measure("", lambda batch, lately: batch.reward_sources.get(name))


def _mean_staleness(batch: BatchRecord) -> float | None:
    return _ratio(sum(age * tokens for age, tokens in batch.staleness.items()), sum(batch.staleness.values()))


def _failed(batch: BatchRecord, lately: Lately) -> float | None:
    share = _ratio(sum(batch.failed_samples.values()), lately.generated_samples)
    return None if share is None else 100 * share


def _waited(batch: BatchRecord, lately: Lately) -> float | None:
    return _percent(lately.waited_s, lately.elapsed_s)


def _idle(batch: BatchRecord, lately: Lately) -> float | None:
    return _percent(lately.elapsed_s - lately.engine_busy_s, lately.elapsed_s)


def _percent(part: float, whole: float) -> float | None:
    return min(max(100 * part / whole, 0.0), 100.0) if whole > 0 else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _one(
    key: str,
    title: str,
    unit: str,
    of: Callable[[BatchRecord, Lately], float | None],
    *,
    from_zero: bool = False,
    if_any: bool = False,
) -> Panel:
    return Panel(key, title, unit, (Measure("", of),), from_zero=from_zero, if_any=if_any)


def _evaluation(name: str, metrics: Sequence[str]) -> Panel:
    """From the evaluations of a set, not the batches. A single metric needs no name: it is the score."""
    key = "evaluation" if name == PLAIN else f"evaluation:{name}"
    title = "evaluation" if name == PLAIN else f"evaluation: {name}"
    names = tuple(metrics) if len(metrics) > 1 else ("",)
    unit = "held-out score, by version" if len(metrics) < 2 and set(metrics) <= {"mean"} else ", ".join(metrics)
    measures = tuple(Measure(each, lambda *_: None) for each in names)
    return Panel(key, title, "by version" if len(metrics) > 1 else unit, measures, dots=True, of_set=name)


_PANELS = (
    _one("reward", "reward", "mean of the batch", lambda batch, _: batch.reward_mean),
    _one("length", "response length", "tokens, mean", lambda batch, _: batch.response_tokens_mean, from_zero=True),
    _one(
        "truncated",
        "truncated",
        "% of samples",
        lambda batch, _: _percent(batch.truncated_samples, batch.samples),
        from_zero=True,
    ),
    Panel(
        "staleness",
        "staleness",
        "versions",
        (
            Measure("mean", lambda batch, _: _mean_staleness(batch)),
            Measure("max", lambda batch, _: max(batch.staleness, default=None)),
        ),
        from_zero=True,
    ),
    _one("entropy", "entropy", "nats", _trained(lambda batch: batch.entropy)),
    _one("kl", "KL to the behaviour policy", "nats, k3", _trained(lambda batch: batch.approx_kl), from_zero=True),
    _one("reference_kl", "KL to the reference", "nats", _trained(lambda batch: batch.reference_kl), from_zero=True),
    _one(
        "tokens",
        "tokens/s",
        "generated",
        lambda _, lately: _ratio(lately.generated_tokens, lately.elapsed_s),
        from_zero=True,
    ),
    _one("waits", "trainer waits", "% of the time, for rows of the batch", _waited, from_zero=True),
    _one("idle", "engines idle", "% of the time", _idle, from_zero=True),
    _one("grad_norm", "gradient norm", "before clipping", _trained(lambda batch: batch.grad_norm), from_zero=True),
    _one("loss", "loss", "", _trained(lambda batch: batch.loss)),
    _one("critic_loss", "critic's loss", "", lambda batch, _: batch.critic_loss),
    _one("kept_mass", "kept mass", "probability of what top-k and top-p keep", _trained(lambda batch: batch.kept_mass)),
    _one("failed", "failed", "% of samples", _failed, from_zero=True, if_any=True),
    _one(
        "dropped",
        "dropped",
        "groups a batch",
        lambda batch, _: float(sum(batch.dropped_groups.values())),
        from_zero=True,
        if_any=True,
    ),
)
