"""`headrace check`."""

from __future__ import annotations

import argparse

from headrace.config import TrainConfig, load_config


def run(args: argparse.Namespace) -> int:
    config = load_config(TrainConfig, args.config, args.overrides)
    from headrace.controller.plan import make_plan

    plan = make_plan(config)
    from headrace.controller.describe import describe_plan

    print(describe_plan(plan))
    return 0
