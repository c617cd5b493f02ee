"""`headrace quickstart`: every step is a command that can be repeated by hand, and is printed as one."""

from __future__ import annotations

import argparse
import shlex
import shutil
import time
from pathlib import Path

from headrace.config import ConfigError

_MARK = ".headrace-quickstart"
"""Says that a folder was made by the quickstart, so that it may be erased."""
_MADE = ("data", "model", "sft", "run", "sft.yaml", "grpo.yaml")


def run(args: argparse.Namespace) -> int:
    folder = Path(args.dir)
    _make_room(folder, args.fresh)
    began = time.monotonic()

    from rich.console import Console

    from headrace.cli.quickstart.inputs import make_inputs
    from headrace.cli.quickstart.report import render_next_steps, render_report
    from headrace.observe.run_record import RunWatcher
    from headrace.store import RunReader

    console = Console()
    console.print(f"Making data, a tokenizer, a model and two configs in {folder}", highlight=False)
    made = make_inputs(folder, args.seed)
    steps = [
        ("Warming up on demonstrations", ["sft", str(made.sft_config), "--dir", str(folder / "sft")]),
        ("Training with asynchronous GRPO", ["train", str(made.grpo_config), "--dir", str(folder / "run")]),
    ]
    for title, step in steps:
        console.print(f"\n[bold]{title}[/]\n$ headrace {shlex.join(step)}", highlight=False)
        if code := _call(step):
            return code
    with RunReader(folder / "run") as reader:
        record = RunWatcher(reader).read()
    if record.status != "finished":
        return 1
    console.print(render_report(record, time.monotonic() - began))
    console.print()
    console.print(render_next_steps(folder, folder / "run" / "checkpoints" / f"step_{record.number}" / "model"))
    return 0


def _call(step: list[str]) -> int:
    from headrace.cli.main import main

    return main(step)


def _make_room(folder: Path, fresh: bool) -> None:
    """Refuse to write over anything, or erase what an earlier quickstart made, and nothing else in the folder."""
    made = [folder / name for name in _MADE if (folder / name).exists()]
    if made and not fresh:
        raise ConfigError(f"{made[0]} exists: begin again with --fresh, or choose another --dir")
    if made and not (folder / _MARK).exists():
        raise ConfigError(f"{made[0]} was not made by a quickstart, and --fresh would erase it; choose another --dir")
    for path in made:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
