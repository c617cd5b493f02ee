"""`headrace inspect`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from headrace.cli.piped import PipedConsole
from headrace.config.values.paths import path_of
from headrace.observe.finite_json import finite_json
from headrace.observe.offline import summary as offline_summary
from headrace.observe.offline.record import OfflineStep
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import RunWatcher
from headrace.observe.summary import build_summary
from headrace.store import RunReader
from headrace.store.tables import TRAIN
from headrace.viewer.terminal import offline_text as offline_text
from headrace.viewer.terminal.inspect_text import describe_run


def run(args: argparse.Namespace) -> int:
    with RunReader(path_of(args.run_dir)) as reader:
        if reader.kind != TRAIN:
            return _offline(args, reader)
        record = RunWatcher(reader).read()
    summary = build_summary(record)
    console = PipedConsole(lasting=False)
    _tell(args, record.batches, summary, console, lambda: describe_run(record, summary, console.width))
    record.counts.check()
    return 0


def _offline(args: argparse.Namespace, reader: RunReader) -> int:
    record = OfflineWatcher(reader).read()
    summary = offline_summary.build_summary(record)
    console = PipedConsole(lasting=False)
    _tell(args, record.steps, summary, console, lambda: offline_text.describe_run(record, summary, console.width))
    return 0


def _tell(
    args: argparse.Namespace,
    batches: Sequence[BatchRecord | OfflineStep],
    summary: Mapping[str, Any],
    console: PipedConsole,
    described: Callable[[], RenderableType],
) -> None:
    if args.batches:
        for batch in batches:
            print(finite_json(batch.to_json()))
    elif args.json:
        print(finite_json(summary, indent=2))
    else:
        console.print(described())
