"""`headrace rollouts`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.text import Text

from headrace.cli.piped import PipedConsole
from headrace.config.errors import ConfigError
from headrace.config.values.paths import path_of
from headrace.store import RunReader
from headrace.store.rollouts import DROPPED, Order, Query
from headrace.store.tables import TRAIN

_SHOWN = 20
_ASCENDING = ("batch",)


def run(args: argparse.Namespace) -> int:
    query = asked(args)
    if args.html is not None:
        _check_page(path_of(args.html))
    with RunReader(path_of(args.run_dir)) as reader:
        if reader.kind != TRAIN:
            raise ConfigError(f"{args.run_dir} is of headrace {reader.kind}, which samples no rollouts")
    from headrace.viewer.rollouts import find

    found = find(path_of(args.run_dir), query)
    if args.html is not None:
        from headrace.viewer.rollout_page import write_page

        write_page(path_of(args.html), path_of(args.run_dir), found)
        print(f"{len(found)} rollouts: {args.html}")
        return 0
    if args.json:
        from headrace.viewer.rollout_text import as_json

        for rollout in found:
            print(json.dumps(as_json(rollout)))
        return 0
    from headrace.viewer.rollout_text import as_text

    console = PipedConsole(lasting=False)
    for rollout in found:
        console.print(as_text(rollout), end="\n\n", soft_wrap=True)
    if not found:
        console.print(Text("no rollout is like that; see --help, and record.rollouts for how many a run keeps"))
    return 0


def _check_page(file: Path) -> None:
    """Before rollouts are read. Raises ConfigError."""
    if file.is_dir():
        raise ConfigError(f"--html {file} is a folder; give a file, as {file / 'rollouts.html'}")
    if not file.parent.is_dir():
        raise ConfigError(f"--html {file}: there is no folder {file.parent}; make it, or give another path")


def asked(args: argparse.Namespace) -> Query:
    """Raises ConfigError for a range of batches or a limit that is none."""
    order: Order
    order, descending = args.sort or "batch", args.sort is not None and args.sort not in _ASCENDING
    if args.best or args.worst:
        order, descending = "reward", args.best
    statuses = [name for name, wanted in (("failed", args.failed), (DROPPED, args.dropped)) if wanted]
    first, last = _batches(args.batch)
    limit = args.limit if args.limit is not None else None if (args.json or args.html) else _SHOWN
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit is {limit}; give 1 or more")
    return Query(
        first_batch=first,
        last_batch=last,
        prompt_id=args.prompt,
        statuses=tuple(statuses) or None,
        pattern=args.grep,
        order=order,
        descending=descending,
        limit=limit,
    )


def _batches(text: str | None) -> tuple[int | None, int | None]:
    """`12`, `10:20`, `10:` or `:20`, both ends included."""
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    if not all(part.isdecimal() for part in (first, last) if part) or not (first or last):
        raise ConfigError(f"--batch is {text!r}; give a batch, as 12, or a range, as 10:20, 10: or :20")
    begin = int(first) if first else None
    end = (int(last) if last else None) if colon else begin
    if begin is not None and end is not None and end < begin:
        raise ConfigError(f"--batch is {text!r}, which holds none; give the lower one first: {end}:{begin}")
    return begin, end
