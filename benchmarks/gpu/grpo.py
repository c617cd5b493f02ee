"""Whole GRPO runs on one CUDA device: against TRL, and `async` against engine and trainer that take turns.

The model, prompts, reward and settings are those of `benchmarks.end_to_end`, in bfloat16, with Qwen2.5's sizes (the
output layer of its own) and answers of up to 1,024 tokens: 8 prompts x 8 samples a batch. TRL runs with this
interpreter, where it has TRL, `AT_ONCE` samples a pass: with more, its logits do not fit.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
MODES = {
    "sync": ('async.mode="sync"',),
    "turns": ('async.mode="async"', "runtime.turns=true", "runtime.trace=true"),
    "async": ('async.mode="async"', "runtime.trace=true"),
}
"""How engine and trainer share the device: by turns, in kernels that add in one order; by turns; and at once."""
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
    """`async` on one device against two sides that take turns, in turn with them: `sync`, whose passes also take
    kernels that add in one order, and `async` in turns, which takes the same kernels as it does. With what bounds the
    second: of turns, the share of the slower one is the least time that can be taken."""
    with tempfile.TemporaryDirectory() as name:
        loads = {"skewed": (None, EOS_CHANCE["skewed"], None), "heavy tail": (HARD_EVERY, EASY_EOS, HARD_EOS)}
        for lengths, (every, chance, upper_chance) in loads.items():
            folder = Path(name) / lengths
            folder.mkdir()
            make_prompts(folder / "prompts.jsonl", every)
            make_model(folder / lengths, chance, upper_chance, policy_shape(shape))
            run = partial(headrace_run, folder, lengths, "bfloat16", *OVERRIDES, timeout_s=TIMEOUT_S)
            rounds = [{side: run(*own) for side, own in MODES.items()} for _ in range(runs)]
            yield {"shape": shape, "lengths": lengths, **compared(rounds)}


def compared(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Of each side of `MODES`, round by round; `at_most`: what `async` over turns can come to."""
    speeds = {side: [each[side]["samples_per_s"] for each in rounds] for side in MODES}
    turns = [each["turns"] for each in rounds]
    return {
        "mean_over_longest": sum(each["mean_length"] for each in turns) / len(turns) / LONGEST,
        "samples_per_s": {side: spread(values) for side, values in speeds.items()},
        "async_over_sync_in_one_order": ratios(speeds["async"], speeds["sync"]),
        "async_over_turns": ratios(speeds["async"], speeds["turns"]),
        "at_most": spread([1 / max(each["lane_shares"].values()) for each in turns]),
    }
