"""Rules by which a run's record asks to be looked at. The rows that they belong to are in `observe/metrics/`.

Each is a pure function of what is recorded: it gives what it saw, with the numbers, or None. Values are medians over
several batches, and of times the worst batch is left out, so that one odd batch never rings. A run that is too young
for a rule hears nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from headrace.observe import totals
from headrace.observe.glyphs import brief, percent
from headrace.observe.record import BatchRecord, Totals
from headrace.observe.spent import waits

RECENT = 10
"""Batches over which times and failures are looked at: with eleven records of a process there are ten differences."""
_FEW = 5
"""Batches whose median is one value of a curve: two of them may be odd."""

KEPT_MASS_FALL = 0.1
"""A tenth of the probability is what a usual top_p of 0.9 cuts off: as much again has moved to where nothing sees
it."""
ENTROPY_LEFT = 0.2
"""Of what it began with. Entropy falls in every run that learns; with less than a fifth left the samples of a group are
nearly the same, and there is little to compare."""
SOLVED = 0.9
"""Of the way from the lowest to the highest reward seen: a policy that is there may well be sure of itself."""
KL_OF_A_STEP = 0.05
"""Nats a token. PPO implementations stop their epochs at 0.01 to 0.02; several times that between the policy that
sampled and the one that is trained leaves the range in which ratios correct anything."""
KL_TO_REFERENCE = 0.1
"""Nats a token: 20 nats over an answer of 200 tokens, more than runs with a reward model were found to stand."""
KL_GROWTH = 2.0
"""Within `_KL_SPAN` batches. A KL that is kept in bounds flattens; one that doubles so late runs away."""
_KL_SPAN = 20
EQUAL_GROUPS = 0.95
"""Of the groups that were scored: nearly all of what was generated teaches nothing."""
TRAINER_WAITS = 0.2
"""Of its time. Where rollouts differ in length some wait is left whatever is done; more than a fifth can be won."""
SWAP_COSTS = 0.05
"""Of the engines' time: below, a swap may be slower than a step and is not worth a thought."""
FAILURES = 0.05
"""Of the samples. A timeout now and then is nothing; one in twenty costs groups, and biases what is left."""


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """What rules look at."""

    batches: Sequence[BatchRecord]
    takes_turns: bool = False
    """The trainer waits for every batch by design (`async.mode: sync`)."""
    shares_processors: bool = False
    """Engines and trainer compute on the same processors: while engines do, those do not rest."""


Rule = Callable[[RunSoFar], str | None]


def entropy_falls(run: RunSoFar) -> str | None:
    """The policy has become sure of itself before it has become good: it explores no more, and its reward stands."""
    values = _known(batch.entropy for batch in run.batches)
    if len(values) < 2 * _FEW or len(run.batches) < 2 * RECENT:
        return None
    first, last = median(values[:_FEW]), median(values[-_FEW:])
    if first <= 0 or last >= ENTROPY_LEFT * first:
        return None
    if _reward_rises(run.batches) or _is_solved(run.batches):
        return None
    return f"entropy fell from {first:.2f} to {last:.2f} nats, and the reward no longer rises"


def kept_mass_falls(run: RunSoFar) -> str | None:
    """The policy moves probability to what top-p and top-k cut off."""
    values = _known(batch.kept_mass for batch in run.batches)
    if len(values) < 2 * _FEW:
        return None
    first, last = median(values[:_FEW]), median(values[-_FEW:])
    if last >= first - KEPT_MASS_FALL:
        return None
    return (
        f"kept mass fell from {first:.2f} to {last:.2f}, as the policy moves probability to what top_p and top_k cut "
        "off, where neither loss nor KL sees it"
    )


def step_kl_rises(run: RunSoFar) -> str | None:
    """The policy is far from the one that sampled."""
    values = _known(batch.approx_kl for batch in run.batches if batch.trained_tokens)
    if len(values) < _FEW or (last := median(values[-_FEW:])) <= KL_OF_A_STEP:
        return None
    return f"the KL from the policy that sampled to the one that is trained is {last:.2f} nats a token"


def reference_kl_rises(run: RunSoFar) -> str | None:
    """The policy leaves the reference, ever faster."""
    values = _known(batch.reference_kl for batch in run.batches)
    if len(values) < _KL_SPAN + _FEW:
        return None
    before, last = median(values[-_KL_SPAN - _FEW : -_KL_SPAN]), median(values[-_FEW:])
    if last <= KL_TO_REFERENCE or last < KL_GROWTH * before:
        return None
    return f"the KL to the reference rose from {before:.2f} to {last:.2f} nats a token in {_KL_SPAN} batches"


def rewards_are_equal(run: RunSoFar) -> str | None:
    """Nothing is left to compare within groups."""
    shares = []
    for batch in run.batches[-_FEW:]:
        dropped = batch.dropped_groups.get("zero_spread", 0)
        if batch.equal_groups is None and not dropped:
            return None
        shares.append(((batch.equal_groups or 0) + dropped) / max(batch.groups + dropped, 1))
    if len(shares) < _FEW or (share := median(shares)) < EQUAL_GROUPS:
        return None
    return f"all rewards of a group are equal in {percent(share)} of the groups"


def trainer_waits(run: RunSoFar) -> str | None:
    """The trainer has nothing to do, and nobody else uses what it computes on."""
    lately = _lately(run.batches)
    if run.takes_turns or len(lately) < RECENT or any(batch.warm_up for batch in run.batches[-RECENT:]):
        return None
    spent = _but_worst(lately, lambda part: sum(waits(part.trainer_s).values()))
    waited = waits(spent.trainer_s)
    share = sum(waited.values()) / spent.elapsed_s
    # Where they share processors, what others compute meanwhile is not lost: at least what the busiest of them did.
    busy_s = max(spent.busy_s.values(), default=spent.generate_s)
    idle = min(share, 1 - busy_s / spent.elapsed_s) if run.shares_processors else share
    if idle <= TRAINER_WAITS:
        return None
    longest = max(waited, key=lambda name: waited[name])
    if run.shares_processors:
        told = f"nobody computes for {percent(idle)} of the time, while the trainer waits, mostly for {longest}"
    else:
        told = f"the trainer waits {percent(idle)} of its time, mostly for {longest}"
    return told


def swap_is_slow(run: RunSoFar) -> str | None:
    """Exchanging the weights costs the engines longer than training on a batch takes."""
    lately = _lately(run.batches)
    if len(lately) < RECENT:
        return None
    spent = _but_worst(lately, lambda part: part.engine_stall_s)
    if spent.engine_stall_s <= max(spent.train_s, SWAP_COSTS * spent.elapsed_s):
        return None
    stall, step = spent.engine_stall_s / (len(lately) - 1), spent.train_s / (len(lately) - 1)
    return f"new weights stall the engines for {brief(stall)} a batch, which trains in {brief(step)}"


def samples_fail(run: RunSoFar) -> str | None:
    """Rewards, environments or engines lose samples all the time."""
    lately = _lately(run.batches)
    if len(lately) < RECENT:
        return None
    spent = _but_worst(lately, lambda part: sum(part.failed_samples.values()))
    kinds = spent.failed_samples
    share = sum(kinds.values()) / max(spent.generated_samples, 1)
    if share <= FAILURES:
        return None
    return f"{percent(share)} of the samples fail, mostly of {max(kinds, key=lambda kind: kinds[kind])}"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _reward_rises(batches: Sequence[BatchRecord]) -> bool:
    rewards = [batch.reward_mean for batch in batches]
    return median(rewards[-RECENT:]) > median(rewards[-2 * RECENT : -RECENT])


def _is_solved(batches: Sequence[BatchRecord]) -> bool:
    low = min((batch.reward_min for batch in batches if batch.reward_min is not None), default=None)
    high = max((batch.reward_max for batch in batches if batch.reward_max is not None), default=None)
    if low is None or high is None or high <= low:
        return False
    return median(batch.reward_mean for batch in batches[-RECENT:]) >= low + SOLVED * (high - low)


def _lately(batches: Sequence[BatchRecord]) -> list[Totals]:
    """What each of the last batches took; of those that one process trained, which alone can be subtracted."""
    recent = [batch for batch in batches[-RECENT - 1 :] if batch.branch == batches[-1].branch]
    spent = [totals.since(later.totals, earlier.totals) for earlier, later in pairwise(recent)]
    return [part for part in spent if part.elapsed_s > 0]


def _but_worst(lately: Sequence[Totals], cost: Callable[[Totals], float]) -> Totals:
    """All but the one batch that cost the most: it may be an outlier."""
    return totals.add(sorted(lately, key=cost)[:-1])
