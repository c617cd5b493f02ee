"""`headrace check`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.cli.load import load_noted, tell_notes
from headrace.config import DPOConfig, RMConfig, SFTConfig, TrainConfig
from headrace.config.cluster import resource_overrides
from headrace.config.reading.recognised import recognised

if TYPE_CHECKING:
    from headrace.offline.trained.of_config import OfflineConfig


def run(args: argparse.Namespace) -> int:
    args.overrides = [*resource_overrides(args.resource), *args.overrides]
    kind = args.kind or recognised(args.config, args.overrides)
    print(_run(args) if kind == "train" else _offline(_offline_config(kind, args)))
    return 0


def _run(args: argparse.Namespace) -> str:
    config = load_noted(TrainConfig, args)
    from headrace.controller.planning.plan import make_plan

    plan = make_plan(config)
    tell_notes(plan.notes)
    from headrace.controller.planning.describe import describe_plan

    return describe_plan(plan)


def _offline_config(kind: str, args: argparse.Namespace) -> OfflineConfig:
    if kind == "sft":
        return load_noted(SFTConfig, args)
    return load_noted(RMConfig, args) if kind == "rm" else load_noted(DPOConfig, args)


def _offline(config: OfflineConfig) -> str:
    from headrace.offline.planning.plan import make_offline_plan

    plan = make_offline_plan(config)
    from headrace.offline.planning.describe import describe_offline_plan

    return describe_offline_plan(plan)
