"""`headrace eval`."""

from __future__ import annotations

import argparse
import json

from headrace.config import TrainConfig, load_config


def run(args: argparse.Namespace) -> int:
    overrides = [*args.overrides, *([] if args.model is None else [f"model.path={json.dumps(args.model)}"])]
    config = load_config(TrainConfig, args.config, overrides)
    from headrace.controller.evaluate import evaluate
    from headrace.controller.plan import make_plan
    from headrace.runtime.blocking import run_to_end

    plan = make_plan(config)
    result = run_to_end(lambda: evaluate(plan), "headrace eval")
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
