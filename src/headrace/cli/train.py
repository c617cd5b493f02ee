"""`headrace train`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headrace.cli.load import load_noted, tell_note, tell_notes
from headrace.config import TrainConfig
from headrace.config.cluster import resource_overrides
from headrace.config.values.paths import path_of


def run(args: argparse.Namespace) -> int:
    args.overrides = [*resource_overrides(args.resource), *args.overrides]
    if args.from_run is not None:
        args.overrides = [*args.overrides, f"from.run={json.dumps(args.from_run)}"]
    if args.from_optimizer:
        args.overrides = [*args.overrides, "from.optimizer=true"]
    if args.rollouts_only:
        args.overrides = [*args.overrides, "rollouts_only=true"]
    folder = Path("runs") / Path(args.config).stem if args.dir is None else path_of(args.dir)
    config = load_noted(TrainConfig, args)
    from headrace.controller.planning.origin import resumed_config
    from headrace.controller.planning.plan import make_plan

    plan = make_plan(resumed_config(config, folder), folder) if args.resume else make_plan(config)
    tell_notes(plan.notes)
    if args.dry_run:
        from headrace.controller.planning.describe import describe_plan

        print(describe_plan(plan))
        return 0
    from headrace.cli.piped import PipedConsole
    from headrace.cli.show import print_end
    from headrace.controller.train import Begin, train
    from headrace.runtime.event_loop import run_to_end
    from headrace.viewer.terminal.showing import view_for

    begin: Begin = "resume" if args.resume else "fresh" if args.fresh else "new"
    view = view_for(PipedConsole(lasting=True, force_terminal=False if args.plain else None))
    ended = run_to_end(lambda: train(plan, folder, begin, view, tell_note), "headrace train")
    print_end(folder, ended)
    return 0
