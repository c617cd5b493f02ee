"""What each `on_deadline` costs: trainer idle share, and what is masked, late or handed back.

Over max_staleness and the tail of generation times, in the discrete-event world of `benchmarks.schedule_world`:
generation times are log-normal with median 1, engines run everything that is admitted, and a step takes what makes
the trainer the bottleneck at zero tail by a little.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, get_args

from benchmarks.machine import save
from benchmarks.schedule_world import World, WorldRun
from headrace.experience.schedule import OnDeadline

ETAS, TAILS, SEEDS = (0, 1, 2, 4, 8), (0.25, 0.75, 1.25, 1.75), range(5)
BATCH, BATCHES = 16, 60


def measure(eta: int, tail: float, rule: OnDeadline) -> dict[str, float]:
    """Medians over seeds."""
    rows = []
    for seed in SEEDS:
        world = World(
            prompts_per_batch=BATCH,
            max_staleness=eta,
            total_batches=BATCHES,
            on_deadline=rule,
            prompts=100_000,
            ahead=max(2, eta + 1) * BATCH,
            tail=tail,
            step_time=0.6 * math.exp(tail**2 / 2),
            seed=seed,
        )
        outcome = WorldRun(world).run()
        assert outcome.finished
        trained = BATCH * BATCHES
        rows.append(
            {
                "idle_share": outcome.trainer_idle / outcome.time,
                "past_deadline_share": outcome.late / trained,
                "handed_back_per_trained": outcome.handed_back / trained,
                "worst_overrun": max(outcome.stale_share),
                "batches_per_time": BATCHES / outcome.time,
            }
        )
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    table: list[dict[str, Any]] = []
    print(f"{'eta':>3} {'tail':>5} {'rule':<5} {'idle':>6} {'past deadline':>14} {'handed back':>12} {'overrun':>8}")
    for eta in ETAS:
        for tail in TAILS:
            for rule in get_args(OnDeadline):
                if eta == 0 and rule != "wait":
                    continue
                row = measure(eta, tail, rule)
                table.append({"max_staleness": eta, "tail_sigma": tail, "on_deadline": rule, **row})
                print(
                    f"{eta:>3} {tail:>5} {rule:<5} {row['idle_share']:>6.2f} {row['past_deadline_share']:>14.3f} "
                    f"{row['handed_back_per_trained']:>12.3f} {row['worst_overrun']:>8.0f}"
                )
    save("schedule", {"prompts_per_batch": BATCH, "batches": BATCHES, "seeds": len(SEEDS), "rows": table})


if __name__ == "__main__":
    main()
