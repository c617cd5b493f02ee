"""`headrace eval`."""

from __future__ import annotations

import argparse
import json

from headrace.config import TrainConfig, load_config


def run(args: argparse.Namespace) -> int:
    overrides = [*args.overrides, *([f"model.path={args.model}"] if args.model else [])]
    config = load_config(TrainConfig, args.config, overrides)
    from headrace.controller.evaluate import evaluate
    from headrace.controller.plan import make_plan
    from headrace.runtime.event_loop import run as run_loop

    result = run_loop(evaluate(make_plan(config)))
    if args.json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return 0
    reward = result["reward_mean"]
    print(
        f"{config.model.path}: mean reward {'none' if reward is None else f'{reward:.3f}'} on {result['prompts']} "
        f"held-out prompts ({result['failed']} failed), {result['response_tokens_mean']:.1f} tokens a response"
    )
    for sample in result["samples"]:
        print(f"  {sample['prompt']!r} -> {sample['response']!r}  (reward {sample['reward']})")
    return 0
