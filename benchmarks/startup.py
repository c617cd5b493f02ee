"""From `headrace train` to its first trained step, tiny model, as a whole process; and what `import headrace` adds to
the start of Python.

python -m benchmarks.startup [--runs 5]

In turn: with a reward function whose file imports nothing, with a rollout worker process beside that, and with a reward
function whose file imports torch and transformers, as its own process does before it scores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts

LIGHT, HEAVY = "reward.py:score", "benchmarks.heavy_reward:reward"


def first_step_s(folder: Path, workers: int, reward: str) -> float:
    """Seconds from the start of the process to the line that it prints for its first batch."""
    command = [sys.executable, "-m", "headrace.cli.main", "train", str(folder / "grpo.yaml")]
    function = f"{folder}/{reward}" if reward == LIGHT else reward
    command += [f"rollout.workers={workers}", f"reward.function={function}"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--dir", str(folder / "run"), "--fresh", "--plain"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seconds = next(time.perf_counter() - began for line in process.stdout if line.startswith("batch 1/"))
        process.communicate(timeout=120)
    return seconds


def process_s(code: str) -> float:
    """Seconds of a Python process that runs `code`."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "model", 1 / 32)
        (folder / "reward.py").write_text("def score(response, row):\n    return len(response) % 7 / 7\n")
        config = {
            "model": {"path": str(folder / "model")},
            "data": {"train": str(folder / "prompts.jsonl")},
            "rollout": {"prompts_per_batch": 4, "samples_per_prompt": 4, "sampling": {"max_new_tokens": 32}},
            "engine": {"max_context": 64},
            "trainer": {"batches": 1},
        }
        (folder / "grpo.yaml").write_text(yaml.safe_dump(config))
        rounds = [
            (first_step_s(folder, 0, LIGHT), first_step_s(folder, 1, LIGHT), first_step_s(folder, 0, HEAVY))
            for _ in range(args.runs)
        ]
    imports = [process_s("import headrace") - process_s("pass") for _ in range(args.runs)]
    result = {
        "first_trained_step_s": spread([without for without, _, _ in rounds]),
        "with_one_rollout_process_s": spread([beside for _, beside, _ in rounds]),
        "more_s": spread([beside - without for without, beside, _ in rounds]),
        "with_a_reward_that_imports_torch_s": spread([heavy for _, _, heavy in rounds]),
        "import_s": spread(imports),
    }
    print(json.dumps(result))
    save("startup", result)


if __name__ == "__main__":
    main()
