"""Whole runs in virtual time with an engine and a trainer on devices of their own, and what is read from them.

The controller is the one that users run; nothing is generated or trained, so figures depend on no machine. What takes
no time here: prefill, rewards, the disk, and the trainer but for its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headrace.config import TrainConfig
from headrace.controller.simulation.machine import DiskCosts
from headrace.controller.simulation.outside import Costs
from headrace.controller.simulation.simulated_run import Outcome, simulate
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import EngineCosts
from headrace.rewards.simulated import RewardCosts
from headrace.training.simulated import TrainerCosts

MEDIAN_TOKENS, TOKEN_S = 200, 0.02
_LONGEST = 100 * MEDIAN_TOKENS


@dataclass(frozen=True)
class Circumstances:
    batch: int
    """Prompts."""
    samples: int
    """Of a prompt."""
    batches: int
    max_staleness: int
    on_deadline: str
    ahead: int
    slots: int
    """Sequences that the engine decodes together, however many at one pace."""
    tail: float | None
    """Answers are of geometric length about a mean that is drawn for each, log-normal with this sigma; None: each has
    `MEDIAN_TOKENS`."""
    step_s: float
    """Of a training step."""

    @property
    def order(self) -> dict[str, Any]:
        """The section `async`."""
        if not self.max_staleness:
            return {"mode": "sync"}
        return {"max_staleness": self.max_staleness, "on_deadline": self.on_deadline, "ahead": self.ahead}

    @property
    def answer_s(self) -> float:
        """Mean time in which a slot decodes an answer."""
        return MEDIAN_TOKENS * TOKEN_S * math.exp((self.tail or 0.0) ** 2 / 2)


def run(given: Circumstances, seed: int) -> Outcome:
    """Finished, or an error is raised."""
    even = given.tail is None
    config: dict[str, Any] = {
        "model": {"path": "nowhere"},
        "data": {"train": "nowhere.jsonl"},
        "reward": {"function": "exact_match"},
        "rollout": {
            "prompts_per_batch": given.batch,
            "samples_per_prompt": given.samples,
            "sampling": {"max_new_tokens": MEDIAN_TOKENS if even else _LONGEST},
            "episode_timeout_s": 1e9,
            "filters": [],
        },
        "async": given.order,
        "trainer": {"batches": given.batches},
        "checkpoint": {"every": given.batches},
        "runtime": {"stall_timeout_s": 1e9},
    }
    costs = Costs(
        engine=EngineCosts(
            slots=given.slots,
            prefill_s=0.0,
            step_s=TOKEN_S,
            sequence_s=0.0,
            receive_s=0.02 * given.answer_s,
            flip_s=0.0,
            stream_steps=_LONGEST,
        ),
        answers=Answers(mean_tokens=1e9) if even else Answers(mean_tokens=MEDIAN_TOKENS, spread=given.tail or 0.0),
        trainer=TrainerCosts(train_s=0.0, score_s=0.0, step_s=given.step_s, save_s=0.0),
        rewards=RewardCosts(mean_s=0.0),
        disk=DiskCosts(sync_s=0.0, byte_s=0.0),
    )
    outcome = simulate(TrainConfig.model_validate(config), seed, costs=costs, prompts=100_000)
    if outcome.status != "finished":
        raise RuntimeError(f"{given} with seed {seed}: {outcome.status}")
    return outcome


def measures(given: Circumstances, outcome: Outcome) -> dict[str, float]:
    """`idle_share`: of the run, that the actor waited for rows. `speed`: against the slower of engine and trainer, if
    it never waited for the other. Shares of tokens are of those of trained groups."""
    batches = outcome.record.batches
    totals = batches[-1].totals
    trained = sum(batch.trained_tokens for batch in batches)
    left_out = sum(batch.masked_tokens for batch in batches)
    ages = {age: 0 for batch in batches for age in batch.staleness}
    for batch in batches:
        for age, count in batch.staleness.items():
            ages[age] += count
    alone = max(given.step_s, given.batch * given.samples / given.slots * given.answer_s) * given.batches
    return {
        "idle_share": totals.wait_s.get("actor: rows of the batch", 0.0) / totals.elapsed_s,
        "speed": alone / totals.elapsed_s,
        "staleness_mean": sum(age * count for age, count in ages.items()) / max(sum(ages.values()), 1),
        "staleness_max": float(max(ages, default=0)),
        "late_groups_share": sum(batch.late_groups for batch in batches) / (given.batch * given.batches),
        "masked_share": left_out / (trained + left_out),
        "handed_back_per_trained": sum(outcome.counts.dropped.values()) / (given.batch * given.batches),
    }
