"""What of an algorithm is allowed, and yet does not do what its name says."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config.algorithm import AlgorithmConfig

_OF_RATIOS = ("cispo", "gspo", "geometric_mean", "sapo")
"""Losses that differ from each other in what they make of a ratio, and are chosen for that."""


def algorithm_notes(config: AlgorithmConfig) -> Iterator[str]:
    """A line for each."""
    if config.ratio_is_one and config.loss in _OF_RATIOS:
        why = (
            "algorithm.proximal is current" if config.proximal == "current" else "there is one optimiser step per batch"
        )
        more = "use recompute" if config.proximal == "current" else "set algorithm.updates_per_batch above 1"
        yield (
            f"algorithm.loss is {config.loss} and {why}, so that its ratio is 1 and limits nothing, as in reinforce; "
            f"{more}"
        )
    kl = config.kl
    if kl.coefficient > 0 and kl.place == "reward" and kl.estimator in ("k2", "k3", "abs"):
        yield (
            f"algorithm.kl.estimator is {kl.estimator} and kl.place is reward, where an estimate is a constant and "
            "only k1 pushes along the gradient of the KL; use k1, or place: loss"
        )
    if kl.coefficient > 0 and kl.place == "loss" and kl.estimator == "k1":
        yield (
            "algorithm.kl.estimator is k1 and kl.place is loss, where the mean of k1's gradient is 0 whatever the KL "
            "is; use k2, k3 or k3+, or place: reward"
        )
