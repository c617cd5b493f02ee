"""`headrace init`: writes what a run begins with, and nothing over what is there."""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.cli.called_as import program
from headrace.cli.init.starter_files import files
from headrace.cli.init.translate import Translation, nested, translate
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.values.paths import path_of

README = "README.md"
_SIZES = {
    # GRPOConfig of TRL 1.16.0: 8 responses a device (one, here), 8 of a prompt.
    "trl": {"rollout.prompts_per_batch": 1, "rollout.samples_per_prompt": 8, "rollout.sampling.max_new_tokens": 512},
    # ppo_trainer.yaml of verl 0.9.1.
    "verl": {
        "rollout.prompts_per_batch": 1024,
        "rollout.samples_per_prompt": 1,
        "rollout.sampling.max_new_tokens": 512,
        "trainer.epochs": 30,
    },
}
"""What sizes are there unless given."""


def run(args: argparse.Namespace) -> int:
    folder = path_of(args.dir)
    translation = None if args.source is None else _translation(*args.source)
    written = _write(folder, {} if translation is None else nested(translation.values), args.source)
    if translation is not None:
        _report(translation, args.source[0])
    for path in written:
        print(f"wrote {path}")
    there = "" if folder == Path() else f"cd {shlex.quote(str(folder))}; "
    called = shlex.join(program())
    print("next: put a model's folder or Hub name into config.yaml, your rows into train.jsonl and eval.jsonl; then")
    tests = f"{shlex.quote(sys.executable)} -m pytest test_reward.py"  # by what imports headrace, and so may reward.py
    print(f"  {there}{tests}; {called} check config.yaml; {called} train config.yaml")
    if find_spec("pytest") is None:
        print(f"pytest is not installed: {shlex.quote(sys.executable)} -m pip install pytest")
    return 0


def _translation(trainer: str, name: str) -> Translation:
    """Raises ConfigError."""
    file = path_of(name)
    if trainer not in ("trl", "verl"):
        raise ConfigError(f"--from is {trainer!r}; use trl FILE or verl FILE")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--from {trainer} {file} cannot be read: {error}; give a text file") from error
    if trainer == "trl":
        from headrace.cli.init.trl import RULES, defaults, read
    else:
        from headrace.cli.init.verl import RULES, defaults, read
    settings = read(text, file)
    if not settings:
        raise ConfigError(f"{file} has no settings of {trainer}; docs/python.md says which files are read")
    return translate(settings, RULES, defaults)


def _write(folder: Path, values: dict[str, Any], source: list[str] | None) -> list[Path]:
    """Raises ConfigError if a file is there already; then none is written."""
    texts = files(values, source)
    if taken := [str(folder / name) for name in texts if (folder / name).exists() and name != README]:
        raise ConfigError(f"{', '.join(taken)} exists already; give another folder, or move it away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, text in texts.items():
            if not (folder / name).exists():
                (folder / name).write_text(text, encoding="utf-8")
                written.append(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; give another folder") from error
    return written


def _report(translation: Translation, trainer: str) -> None:
    width = max((len(one.name) for one in translation.done), default=0)
    print(f"translated {len(translation.done)} settings:")
    for one in translation.done:
        print(f"  {one.name:<{width}}  {one.words}")
    if translation.assumed:
        width = max(len(one.name) for one in translation.assumed)
        print(f"took {len(translation.assumed)} that are not set as {trainer} has them:")
        for one in translation.assumed:
            print(f"  {one.name:<{width}}  {one.words}")
    if translation.left:
        width = max(len(one.name) for one in translation.left)
        print(f"could not translate {len(translation.left)}:")
        for one in translation.left:
            print(f"  {one.name:<{width}}  {one.words}")
    for line in _notes(translation, trainer):
        print(f"note: {line}")
    try:
        load_config(TrainConfig, {"model": {"path": "model"}, "data": {"train": "train.jsonl"}}, translation.values)
    except ConfigError as error:
        print(f"together they are no config yet: {error}")


def _notes(translation: Translation, trainer: str) -> list[str]:
    """What differs though no setting says so."""
    notes = []
    ours = load_config(TrainConfig, {"model": {"path": "model"}, "data": {"train": "train.jsonl"}}).model_dump()
    sizes = []
    for key, there in _SIZES[trainer].items():
        here = reduce(lambda section, name: section[name], key.split("."), ours)
        if key not in translation.values and here != there:
            sizes.append(f"{key} ({here}; there {there})")
    if sizes:
        notes.append(f"no setting gives these sizes, which are ours: {', '.join(sizes)}")
    if not any(key.startswith("async.") for key in translation.values):
        notes.append(
            f"{trainer} generates and trains in turns, and config.yaml has async.mode: async with max_staleness: 2, "
            "which is off-policy by up to 2 versions; async.mode: sync, with max_staleness taken out, is on-policy"
        )
    if not any(key.startswith("reward.") for key in translation.values):
        notes.append("the reward is that of the reward.py written here: write yours into it")
    for key, rows in (("data.train", "training rows"), ("data.eval", "held-out rows")):
        sets = key == "data.eval" and any(name.startswith("evaluation.sets.") for name in translation.values)
        if not sets and not any(name == key or name.startswith(f"{key}.") for name in translation.values):
            notes.append(f"no {rows} are named: {key} is the file of examples written here")
    return notes
