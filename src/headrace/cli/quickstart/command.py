"""`headrace quickstart`: every step is a command that can be repeated by hand, and is printed as one."""

from __future__ import annotations

import argparse
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.called_as import program
from headrace.config import ConfigError
from headrace.config.values.paths import path_of

if TYPE_CHECKING:
    from rich.console import Console

_MARK = ".headrace-quickstart"
"""Says that a folder was made by the quickstart, so that it may be erased."""
_PLOT = "plot.html"
_MADE = ("data", "model", "sft", "run", "sft.yaml", "grpo.yaml", _PLOT)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed is {args.seed}; give a whole number from 0 to {2**32 - 1}")
    folder = path_of(args.dir)
    _make_room(folder, args.fresh)
    began = time.monotonic()

    from safetensors import SafetensorError

    from headrace.cli.piped import PipedConsole
    from headrace.cli.quickstart.materials import make_inputs
    from headrace.cli.quickstart.report import render_next_steps, render_report
    from headrace.cli.quickstart.sizes import LARGE, SMALL
    from headrace.observe.run_record import RunWatcher
    from headrace.store import RunReader

    console = PipedConsole(lasting=True)
    large = ["--large"] if args.large else []
    inputs = ["quickstart", "--dir", str(folder), "--seed", str(args.seed), *large, "--only-inputs", "--fresh"]
    _tell(console, "Making data, a tokenizer, a model and two configs", inputs)
    try:
        made = make_inputs(folder, args.seed, LARGE if args.large else SMALL)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder} cannot be written: {error}; free space, or choose another --dir") from error
    if args.only_inputs:
        return 0
    steps = [
        (
            "Warming up on demonstrations: worked answers first, then guesses (there the loss jumps)",
            ["sft", str(made.sft_config), "--dir", str(folder / "sft")],
        ),
        (
            "Evaluating, training with asynchronous GRPO, evaluating again",
            ["train", str(made.grpo_config), "--dir", str(folder / "run"), "--fresh"],
        ),
    ]
    for title, step in steps:
        console.print()
        _tell(console, title, step)
        if code := _call(step):
            return code
        if step[0] == "sft" and not (folder / "sft" / "model").is_dir():
            return 1  # it was told to stop
    with RunReader(folder / "run") as reader:
        record = RunWatcher(reader).read()
    if record.status != "finished":
        return 1
    step = ["plot", str(folder / "run"), "-o", str(folder / _PLOT)]
    _tell(console, "Drawing the run's curves", step)
    if code := _call(step):
        return code
    console.print(render_report(record, time.monotonic() - began))
    console.print()
    model = folder / "run" / "checkpoints" / f"step_{record.number}" / "model"
    console.print(render_next_steps(folder, model, folder / _PLOT), highlight=False, soft_wrap=True)
    return 0


def _tell(console: Console, title: str, step: list[str]) -> None:
    from rich.text import Text

    command = f"\n$ {shlex.join([*program(), *step])}"
    console.print(Text.assemble((title, "bold"), command), highlight=False, soft_wrap=True)


def _call(step: list[str]) -> int:
    from headrace.cli.main import main

    return main(step)


def _make_room(folder: Path, fresh: bool) -> None:
    """Refuse to write over anything, or erase what an earlier quickstart made, and nothing else in the folder.

    Raises ConfigError.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--dir {folder} is a file; give a folder")
    try:
        _clear(folder, fresh)
    except OSError as error:
        raise ConfigError(f"--dir {folder} cannot be written: {error.strerror}; choose another --dir") from error


def _clear(folder: Path, fresh: bool) -> None:
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
