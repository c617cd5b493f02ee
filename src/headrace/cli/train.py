"""`headrace train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli.load import load_noted
from headrace.config import TrainConfig


def run(args: argparse.Namespace) -> int:
    config = load_noted(TrainConfig, args)
    from headrace.controller.plan import make_plan

    plan = make_plan(config)
    if args.dry_run:
        from headrace.controller.describe import describe_plan

        print(describe_plan(plan))
        return 0
    from rich.console import Console

    from headrace.cli.show import print_end
    from headrace.controller.train import Begin, train
    from headrace.observe.watch import view_for
    from headrace.runtime.event_loop import run as run_loop

    folder = Path(args.dir or Path("runs") / Path(args.config).stem)
    begin: Begin = "resume" if args.resume else "fresh" if args.fresh else "new"
    ended = run_loop(train(plan, folder, begin, view_for(Console(force_terminal=False if args.plain else None))))
    print_end(folder, ended)
    return 0
