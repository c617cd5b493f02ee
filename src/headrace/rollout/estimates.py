"""What several answers to each prompt tell of a policy: mean reward, pass@k, and the majority's answer.

Prompts count alike, however many of their samples could be scored; what could not be scored counts nowhere. A standard
error is that of a mean over prompts, s / sqrt(prompts): samples of one prompt are not independent of each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float | None
    """None if no prompt tells it."""
    stderr: float | None
    """None of fewer than two prompts."""
    prompts: int
    """That it is a mean of."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A sample that has a reward."""

    reward: float
    answer: Hashable = None
    """What its reward took out of it, if that is asked for, and if there is any."""


Prompts = Sequence[Sequence[Scored]]
"""The scored samples of each prompt, in the order in which they were drawn."""


def mean_reward(prompts: Prompts) -> Estimate:
    return _over(sum(one.reward for one in scored) / len(scored) for scored in prompts if scored)


def pass_at_k(prompts: Prompts, k: int, *, pass_at: float) -> Estimate:
    """1 - C(n - c, k) / C(n, k), mean over prompts, where c of a prompt's n scored samples have a reward of `pass_at`
    or more: unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    Of prompts of which k samples could be scored; the others tell nothing of k samples.
    """
    return _over(
        pass_of(len(scored), sum(one.reward >= pass_at for one in scored), k) for scored in prompts if len(scored) >= k
    )


def pass_of(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), as a product, which no n overflows."""
    return 1.0 - math.prod((n - c - i) / (n - i) for i in range(k)) if n - c >= k else 1.0


def majority(prompts: Prompts, *, pass_at: float) -> Estimate:
    """Share of prompts of which the answer that most samples give passes (self-consistency: Wang et al. 2022, arXiv
    2203.11171).

    Of answers with as many votes the one that was drawn first counts. A sample without an answer has no vote; a prompt
    without a vote does not pass.
    """
    return _over(float(_majority_passes(scored, pass_at)) for scored in prompts if scored)


def _majority_passes(scored: Sequence[Scored], pass_at: float) -> bool:
    votes = Counter(one.answer for one in scored if one.answer is not None)
    if not votes:
        return False
    chosen, _ = votes.most_common(1)[0]  # of equal counts, the one that was counted first
    return next(one.reward for one in scored if one.answer == chosen) >= pass_at


def _over(values: Iterable[float]) -> Estimate:
    known = list(values)
    if not known:
        return Estimate(None, None, 0)
    mean = math.fsum(known) / len(known)
    if len(known) < 2:
        return Estimate(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Estimate(mean, math.sqrt(variance / len(known)), len(known))
