"""Tools that take 0.1 to 3 s, with a heavy tail: asynchronous against synchronous on equal devices.

    python -m benchmarks.tools [--runs 5]

GRPO as in `benchmarks.end_to_end` (model of 4.98 M parameters, float32, its batches), with `benchmarks/slow_tools.py`:
4 turns of 12 tokens, three tool calls. eta = 2. `bound`: what a run could bring at best beside sync if tokens and
training took no time, by the tool times alone and by the groups that `async.ahead` lets be at work: sync waits for the
slowest of a batch's episodes each time; async has so many groups under way at any time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path

from benchmarks.end_to_end import PROMPTS_PER_BATCH, SAMPLES_PER_PROMPT, headrace_run
from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts
from benchmarks.slow_tools import LEAST_S, MEDIAN_S, MOST_S, SIGMA, TURNS, tool_s

ETA = 2
WORKFLOW = json.dumps(f"{Path(__file__).parent}/slow_tools.py:SlowTools")
SIDES = {
    "sync": ('async.mode="sync"',),
    "async": (f"async.max_staleness={ETA}",),
    "async, ahead at its most": (f"async.max_staleness={ETA}", f"async.ahead={(ETA + 1) * PROMPTS_PER_BATCH}"),
}
AHEAD = {"async": 2 * PROMPTS_PER_BATCH, "async, ahead at its most": (ETA + 1) * PROMPTS_PER_BATCH}
"""Unless given, max(2 B, B + slots / samples), with 64 slots and 8 samples."""


def bound(ahead: int) -> float:
    rng = random.Random(1)

    def group_s() -> float:
        return max(sum(tool_s(rng) for _ in range(TURNS - 1)) for _ in range(SAMPLES_PER_PROMPT))

    sync = statistics.mean(max(group_s() for _ in range(PROMPTS_PER_BATCH)) for _ in range(2_000))
    return (ahead / statistics.mean(group_s() for _ in range(20_000))) / (PROMPTS_PER_BATCH / sync)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "even", 0.0)
        for _ in range(runs):
            for side, overrides in SIDES.items():
                told = headrace_run(folder, "even", "float32", f"rollout.workflow={WORKFLOW}", *overrides)
                speeds[side].append(told["samples_per_s"])
            print({side: round(values[-1], 1) for side, values in speeds.items()}, flush=True)
    rows = {
        side: {
            "ahead": ahead,
            "over_sync": spread([a / b for a, b in zip(speeds[side], speeds["sync"], strict=True)]),
            "bound": bound(ahead),
        }
        for side, ahead in AHEAD.items()
    }
    batch = {"prompts_per_batch": PROMPTS_PER_BATCH, "samples_per_prompt": SAMPLES_PER_PROMPT}
    told = {
        "eta": ETA,
        **batch,
        "turns": TURNS,
        "tool_s": {"median": MEDIAN_S, "sigma": SIGMA, "from": LEAST_S, "to": MOST_S},
    }
    print(rows)
    save(
        "tools", {**told, "runs": runs, "samples_per_s": {side: spread(v) for side, v in speeds.items()}, "rows": rows}
    )


if __name__ == "__main__":
    main()
