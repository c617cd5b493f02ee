"""What a picture shows of offline trainers: panels, and the curves of each as the record has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from headrace.observe.offline.record import Measured, OfflineStep
from headrace.observe.offline.run_record import OfflineRun
from headrace.viewer.plot.curves import Axis, Measure, Panel
from headrace.viewer.plot.points import Curve, is_empty, point

_BATCH, _HELD_OUT = "batch", "held out"
_CHOSEN, _REJECTED, _REFERENCE = "chosen", "rejected", "reference"

Of = Callable[[Measured], float | None]


def panels(runs: Sequence[OfflineRun]) -> tuple[Panel, ...]:
    """In their order; those that no run has data for are left out later."""
    return tuple(_panel(*shown) for shown in _SHOWN)


def curves(run: OfflineRun, shown: Iterable[Panel], by: Axis) -> dict[str, Mapping[str, Curve]]:
    """By key of the panel the curves by name: those of which anything was measured. x is steps, or seconds of
    training."""
    seconds = {0: 0.0} | {step.step: step.elapsed_s for step in run.steps}

    def x(step: int) -> float:
        return float(step) if by == "batch" else seconds.get(step, 0.0)

    found: dict[str, Mapping[str, Curve]] = {}
    for panel in shown:
        lines: dict[str, Curve] = {}
        for name, of in _MEASURED.get(panel.key, {}).items():
            lines[name] = tuple(point(x(step.step), of(step.measured)) for step in run.steps)
        for name, of in _HELD.get(panel.key, {}).items():
            evaluated = [each for each in run.evaluations if each.step in seconds]
            lines[name] = tuple(point(x(each.step), of(each.measured)) for each in evaluated)
        if panel.key in _OF_STEPS:
            value = _OF_STEPS[panel.key]
            lines[""] = tuple(point(x(step.step), value(step)) for step in run.steps)
        if panel.key == "tokens":
            lines[""] = tuple(
                point(x(now.step), _rate(now.forwarded_tokens, now.elapsed_s - before.elapsed_s))
                for before, now in pairwise(run.steps)
            )
        found[panel.key] = {name: curve for name, curve in lines.items() if not is_empty(curve)}
    return found


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds > 0 else None


def _panel(key: str, title: str, unit: str, from_zero: bool) -> Panel:
    names = (*_MEASURED.get(key, {}), *_HELD.get(key, {}))
    measures = tuple(Measure(name, lambda *_: None) for name in names or ("",))
    return Panel(key, title, unit, measures, from_zero=from_zero)


_SHOWN = (
    ("loss", "loss", "", False),
    ("accuracy", "accuracy", "share", True),
    ("margin", "margin", "reward, chosen - rejected", False),
    ("rewards", "rewards", "mean", False),
    ("chosen_logprobs", "log-prob of the chosen", "nats", False),
    ("rejected_logprobs", "log-prob of the rejected", "nats", False),
    ("grad_norm", "gradient norm", "before clipping", True),
    ("lr", "learning rate", "", True),
    ("tokens", "tokens/s", "computed", True),
)
"""Key, title, unit, and whether the axis begins at 0."""
_MEASURED: Mapping[str, Mapping[str, Of]] = {
    "loss": {_BATCH: lambda found: found.loss},
    "accuracy": {_BATCH: lambda found: found.accuracy},
    "margin": {_BATCH: lambda found: found.margin},
    "rewards": {_CHOSEN: lambda found: found.chosen_reward, _REJECTED: lambda found: found.rejected_reward},
    "chosen_logprobs": {
        _BATCH: lambda found: found.chosen_logprob,
        _REFERENCE: lambda found: found.reference_chosen_logprob,
    },
    "rejected_logprobs": {
        _BATCH: lambda found: found.rejected_logprob,
        _REFERENCE: lambda found: found.reference_rejected_logprob,
    },
}
_HELD: Mapping[str, Mapping[str, Of]] = {
    "loss": {_HELD_OUT: lambda found: found.loss},
    "accuracy": {_HELD_OUT: lambda found: found.accuracy},
    "margin": {_HELD_OUT: lambda found: found.margin},
    "chosen_logprobs": {_HELD_OUT: lambda found: found.chosen_logprob},
    "rejected_logprobs": {_HELD_OUT: lambda found: found.rejected_logprob},
}
_OF_STEPS: Mapping[str, Callable[[OfflineStep], float | None]] = {
    "grad_norm": lambda step: step.grad_norm,
    "lr": lambda step: step.lr,
}
