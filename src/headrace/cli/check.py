"""`headrace check`."""

from __future__ import annotations

import argparse

from headrace.cli.load import load_noted, tell_notes
from headrace.config import TrainConfig
from headrace.config.cluster import resource_overrides


def run(args: argparse.Namespace) -> int:
    args.overrides = [*resource_overrides(args.resource), *args.overrides]
    config = load_noted(TrainConfig, args)
    from headrace.controller.planning.plan import make_plan

    plan = make_plan(config)
    tell_notes(plan.notes)
    from headrace.controller.planning.describe import describe_plan

    print(describe_plan(plan))
    return 0
