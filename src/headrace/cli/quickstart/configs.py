"""The quickstart's two configs, written as a user would write them: what is not the default, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.cli.quickstart.sizes import Size

SFT_BATCH = 32


def write_sft_config(path: Path, folder: Path, seed: int, size: Size) -> None:
    """`folder`: where model/ and data/ are."""
    why = "more gain little on a model this small, and lose much on a busy machine"
    threads = f"runtime: {{threads: 1}}          # {why}\n" if size.one_thread else ""
    path.write_text(
        f"""\
# The warm-up: a model with random weights learns to add, and then to guess.
model: {{path: {_text(folder / "model")}}}
data:
  train: {_text(folder / "data" / "sft.jsonl")}
  shuffle: false               # first demonstrations that work the answer out, then mostly guesses
trainer:
  samples_per_batch: {SFT_BATCH}
  optimizer: {{lr: {_rate(size.sft_lr)}, betas: [0.9, 0.99]}}
  lr_schedule: {{kind: cosine, warmup_steps: 20, min_ratio: 0.1}}
{threads}seed: {seed}
""",
        encoding="utf-8",
    )


def write_grpo_config(path: Path, folder: Path, seed: int, size: Size) -> None:
    """`folder`: where sft/model/ and data/ are."""
    path.write_text(
        f"""\
# Asynchronous GRPO: generation goes on while the model trains, up to two versions ahead.
model: {{path: {_text(folder / "sft" / "model")}}}
data:
  train: {_text(folder / "data" / "train.jsonl")}
  eval: {_text(folder / "data" / "eval.jsonl")}
reward: {{function: numeric}}    # the last number of the response must be the row's answer
rollout:
  prompts_per_batch: 16
  samples_per_prompt: 8
  sampling: {{max_new_tokens: {size.max_response}}}
  filters: []                  # a batch is 16 prompts, also once nearly all of them are solved
async:
  mode: async
  max_staleness: 2
  swap: recompute              # new weights interrupt rollouts, which go on under them
algorithm: {{objective: decoupled}}
trainer:
  batches: {size.batches}
  optimizer: {{lr: {_rate(size.lr)}}}
evaluation: {{every: 20}}
engine: {{max_concurrent_sequences: 64}}
seed: {seed}
""",
        encoding="utf-8",
    )


def _rate(value: float) -> str:
    """As 1.0e-4."""
    return f"{value:.1e}".replace("e-0", "e-")


def _text(path: Path) -> str:
    """Quoted, so that any folder's name is one YAML string, and nothing in it is interpolated."""
    return json.dumps(str(path).replace("${", r"\${"))
