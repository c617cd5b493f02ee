"""Whole GRPO runs on one CUDA device: against TRL, and `async` against `sync`.

The model, prompts, reward and settings are those of `benchmarks.end_to_end`, in bfloat16, with Qwen2.5's sizes (the
output layer of its own) and answers of up to 1,024 tokens: 8 prompts x 8 samples a batch. TRL runs with this
interpreter, where it has TRL, `AT_ONCE` samples a pass: with more, its logits do not fit.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import headrace_run, ratios, trl_run
from benchmarks.gpu.shapes import SHAPES, VOCABULARY
from benchmarks.machine import spread
from benchmarks.policy_model import PolicyShape, make_model, make_prompts

LONGEST, AT_ONCE, TIMEOUT_S = 1024, 8, 1800
EOS_CHANCE = {"even": 0.0, "skewed": 1 / 256}
EASY_EOS, HARD_EOS, HARD_EVERY = 1 / 64, 1 / 2048, 8
OVERRIDES = (
    'model.device="cuda"',
    f'rollout.sampling={{"max_new_tokens": {LONGEST}}}',
    f"engine.max_context={LONGEST + 32}",
    "trainer.max_tokens_per_microbatch=16384",
)


def policy_shape(shape: str) -> PolicyShape:
    sizes = SHAPES[shape]
    heads = sizes["num_attention_heads"]
    return PolicyShape(
        hidden=sizes["hidden_size"],
        intermediate=sizes["intermediate_size"],
        layers=sizes["num_hidden_layers"],
        heads=heads,
        head_dim=sizes["hidden_size"] // heads,
        vocabulary=VOCABULARY,
        context=2 * LONGEST,
    )


def trl_rows(shape: str, runs: int) -> Iterator[dict[str, Any]]:
    """Samples/s of both, even and skewed, sides in turn."""
    if importlib.util.find_spec("trl") is None:
        yield {"shape": shape, "left_out": f"{sys.executable} has no trl"}
        return
    changes = {"device": "cuda", "max_new_tokens": LONGEST, "at_once": AT_ONCE}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        for lengths, chance in EOS_CHANCE.items():
            make_model(folder / lengths, chance, shape=policy_shape(shape))
            speeds: dict[str, list[float]] = {"headrace": [], "trl": []}
            means = []
            for seed in range(runs):
                ours = headrace_run(folder, lengths, "bfloat16", *OVERRIDES, timeout_s=TIMEOUT_S)
                theirs = trl_run(sys.executable, folder, lengths, "bfloat16", seed, TIMEOUT_S, **changes)
                speeds["headrace"].append(ours["samples_per_s"])
                speeds["trl"].append(theirs["samples_per_s"])
                means.append(ours["mean_length"])
            yield {
                "shape": shape,
                "lengths": lengths,
                "mean_over_longest": sum(means) / len(means) / LONGEST,
                "samples_per_s": {side: spread(values) for side, values in speeds.items()},
                "ratio": ratios(speeds["headrace"], speeds["trl"]),
            }


def mode_rows(shape: str, runs: int) -> Iterator[dict[str, Any]]:
    """`async` against `sync` on one device, sides in turn, with what bounds it: in `sync` the two take turns, so the
    slower one's share of that is the least that `async` can take."""
    with tempfile.TemporaryDirectory() as name:
        loads = {"skewed": (None, EOS_CHANCE["skewed"], None), "heavy tail": (HARD_EVERY, EASY_EOS, HARD_EOS)}
        for lengths, (every, chance, upper_chance) in loads.items():
            folder = Path(name) / lengths
            folder.mkdir()
            make_prompts(folder / "prompts.jsonl", every)
            make_model(folder / lengths, chance, upper_chance, policy_shape(shape))
            run = partial(headrace_run, folder, lengths, "bfloat16", *OVERRIDES, timeout_s=TIMEOUT_S)
            sides = [(run('async.mode="sync"'), run('async.mode="async"')) for _ in range(runs)]
            yield {
                "shape": shape,
                "lengths": lengths,
                "mean_over_longest": sum(sync["mean_length"] for sync, _ in sides) / runs / LONGEST,
                "async_over_sync": spread([two["samples_per_s"] / one["samples_per_s"] for one, two in sides]),
                "at_most": spread([1 / max(one["train_share"], one["generate_share"]) for one, _ in sides]),
            }
