"""`headrace inspect`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headrace.cli.piped import PipedConsole
from headrace.observe.run_record import RunWatcher
from headrace.observe.summary import build_summary
from headrace.observe.text import describe_run
from headrace.store import RunReader


def run(args: argparse.Namespace) -> int:
    with RunReader(Path(args.run_dir)) as reader:
        record = RunWatcher(reader).read()
    summary = build_summary(record)
    if args.batches:
        for batch in record.batches:
            print(json.dumps(batch.to_json()))
    elif args.json:
        print(json.dumps(summary, indent=2))
    else:
        console = PipedConsole(lasting=False)
        console.print(describe_run(record, summary, console.width))
    record.counts.check()
    return 0
