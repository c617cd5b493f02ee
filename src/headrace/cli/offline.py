"""`headrace sft`, `headrace rm` and `headrace dpo`."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from typing import TYPE_CHECKING

from headrace.cli.called_as import program
from headrace.cli.load import load_noted
from headrace.cli.piped import PipedConsole, tell
from headrace.config import DPOConfig, RMConfig, SFTConfig
from headrace.config.values.paths import path_of
from headrace.observe.glyphs import near_zero
from headrace.runtime.process.joined import Joined, serve
from headrace.viewer.terminal.offline_view import OfflineLines, OfflineLiveView

if TYPE_CHECKING:
    from headrace.controller.begin import Begin
    from headrace.offline.recorder import OfflineView


def run(args: argparse.Namespace) -> int:
    name: str = args.command
    out = path_of(args.dir)
    joined = Joined.of()
    if joined is not None and joined.rank:
        serve(out, joined)

    def report(step: int, loss: float, tokens_per_s: float) -> None:
        tell(f"{name} step {step}: loss {near_zero(loss, 4)}, {tokens_per_s:,.0f} tokens/s")

    # As `headrace train`: a view in place on a terminal, lines elsewhere.
    console = PipedConsole(lasting=True)
    in_place = not args.plain and console.is_terminal and not console.is_dumb_terminal
    view: OfflineView = OfflineLiveView(console) if in_place else OfflineLines(tell)
    if in_place:
        report = _silent
    if args.from_run is not None:
        from headrace.store.origin import find_origin

        args.overrides = [*args.overrides, f"model.path={json.dumps(str(find_origin(args.from_run).model))}"]
    begin: Begin = "resume" if args.resume else "fresh" if args.fresh else "new"
    if name == "sft":
        sft = load_noted(SFTConfig, args)
        from headrace.offline.sft import run_sft

        result = run_sft(sft, out, begin=begin, report=report, now=time.monotonic, view=view)
    elif name == "rm":
        rm = load_noted(RMConfig, args)
        from headrace.offline.pairs import run_rm

        result = run_rm(rm, out, begin=begin, report=report, now=time.monotonic, view=view)
    else:
        dpo = load_noted(DPOConfig, args)
        from headrace.offline.pairs import run_dpo

        result = run_dpo(dpo, out, begin=begin, report=report, now=time.monotonic, view=view)
    if result.status == "stopped":
        again = [*program(), name, args.config, *args.overrides, "--dir", args.dir, "--resume"]
        print(f"stopped after step {result.steps}\n  continue with: {shlex.join(again)}")
    else:
        print(f"model: {result.model}")
    print(f"  look at: {shlex.join(program())} inspect {args.dir}")
    return 0


def _silent(step: int, loss: float, tokens_per_s: float) -> None:
    """The view tells."""
