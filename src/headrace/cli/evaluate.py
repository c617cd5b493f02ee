"""`headrace eval`. Exit code 1 if no sample could be scored."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from headrace.cli.load import tell_notes
from headrace.config import TrainConfig, load_config


def run(args: argparse.Namespace) -> int:
    overrides = [*args.overrides, *([] if args.model is None else [f"model.path={json.dumps(args.model)}"])]
    config = load_config(TrainConfig, args.config, overrides)
    from headrace.controller.evaluate import evaluate
    from headrace.controller.plan import make_plan
    from headrace.runtime.event_loop import run_to_end

    plan = make_plan(config)
    tell_notes(plan.notes)
    result = run_to_end(lambda: evaluate(plan), "headrace eval")
    if args.json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        _print(config.model.path, result)
    if result["failed"] == 0:
        return 0
    all_failed = result["failed"] == result["prompts"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in result["failed_by_kind"].items()) or "aborted"
    print(
        f"headrace: {'all' if all_failed else result['failed']} of {result['prompts']} samples failed ({kinds}); the "
        f"last: {result['last_failure'] or 'it was aborted'}",
        file=sys.stderr,
    )
    return 1 if all_failed else 0


def _print(model: str, result: dict[str, Any]) -> None:
    reward = result["reward_mean"]
    print(
        f"{model}: mean reward {'none' if reward is None else f'{reward:.3f}'} on {result['prompts']} "
        f"held-out prompts ({result['failed']} failed), {result['response_tokens_mean']:.1f} tokens a response"
    )
    for sample in result["samples"]:
        print(f"  {sample['prompt']!r} -> {sample['response']!r}  (reward {sample['reward']})")
