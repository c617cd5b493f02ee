"""`headrace check`."""

from __future__ import annotations

import argparse

from headrace.cli.load import load_train_config


def run(args: argparse.Namespace) -> int:
    config = load_train_config(args)
    from headrace.controller.plan import make_plan

    plan = make_plan(config)
    from headrace.controller.describe import describe_plan

    print(describe_plan(plan))
    return 0
