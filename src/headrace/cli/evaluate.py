"""`headrace eval`. Exit code 1 if no sample of a set could be scored."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.api.evaluation import as_json
from headrace.cli.load import tell_notes
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.evaluation import PLAIN
from headrace.config.values.paths import path_of
from headrace.store import RunReader
from headrace.store.run_store import CONFIG_NAME
from headrace.store.tables import TRAIN

_BEST, _LAST = "best", "last"


def run(args: argparse.Namespace) -> int:
    path, model = path_of(args.config), args.model
    if path.is_dir():
        model = model or str(_checkpoint(path, args.checkpoint or _LAST))
        path = path / CONFIG_NAME
    elif args.checkpoint is not None:
        raise ConfigError(f"--checkpoint is {args.checkpoint!r}, and {path} is no run; give a run's folder")
    given = [] if model is None else [f"model.path={json.dumps(model)}", "from.run=null", "from.optimizer=false"]
    overrides = [*args.overrides, *given]
    config = load_config(TrainConfig, path, overrides)
    from headrace.controller.evaluate import evaluate
    from headrace.controller.planning.plan import make_plan
    from headrace.runtime.event_loop import run_to_end

    plan = make_plan(config)
    tell_notes(plan.notes)
    results = run_to_end(lambda: evaluate(plan, args.set), "headrace eval")
    if args.json:
        print(json.dumps(as_json(results), indent=2, ensure_ascii=False))
    else:
        for result in results.values():
            _print(config.model.path, result)
    return max(map(_code, results.values()))


def _checkpoint(run: Path, which: str) -> Path:
    """The model of the run's `best`, `last` or so many-th version. Raises ConfigError, StoreError."""
    with RunReader(run) as reader:
        if reader.kind != TRAIN:
            raise ConfigError(
                f"{run} is of headrace {reader.kind}, which names no prompts; give a config, and --model "
                f"{run / 'model'}"
            )
        kept, best = reader.checkpoints(), reader.best()
    numbers = {name: number for number, name in kept.items() if name is not None}
    if which == _BEST:
        if best is None:
            raise ConfigError(f"{run} has no best checkpoint; it needs checkpoint.keep_best, and an evaluation")
        number, folder = best.number, best.folder
    elif which == _LAST:
        number, folder = max(((number, name) for number, name in kept.items()), default=(0, None))
    else:
        if not which.isdecimal() or (int(which) not in kept and (best is None or best.number != int(which))):
            there = ", ".join(map(str, sorted(numbers.values()))) or "none"
            raise ConfigError(
                f"--checkpoint is {which!r}; give best, last, or a version of {run} that is kept: {there}"
            )
        number = int(which)
        folder = kept.get(number) or (best.folder if best is not None else None)
    if folder is None:
        raise ConfigError(
            f"version {number} of {run} is the model that it began from, of which there is no checkpoint; give the "
            "config instead of the run, or --model"
        )
    return run / "checkpoints" / folder / "model"


def _code(result: Mapping[str, Any]) -> int:
    """Tells of samples that failed."""
    if result["failed"] == 0:
        return 0
    all_failed = result["failed"] == result["drawn"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in result["failed_by_kind"].items()) or "aborted"
    where = "" if result["set"] == PLAIN else f" of {result['set']}"
    print(
        f"headrace: {'all' if all_failed else result['failed']} of {result['drawn']} samples{where} failed ({kinds}); "
        f"the last: {result['last_failure'] or 'it was aborted'}",
        file=sys.stderr,
    )
    return 1 if all_failed else 0


def _print(model: str, result: Mapping[str, Any]) -> None:
    drawn, prompts = result["drawn"], result["prompts"]
    name = "" if result["set"] == PLAIN else f" {result['set']}:"
    each = "" if drawn == prompts else f", {drawn // prompts} samples each"
    print(
        f"{model}:{name} mean reward {_number(result['reward_mean'])} on {prompts} "
        f"held-out prompts{each} ({result['failed']} failed), {result['response_tokens_mean']:.1f} tokens a response"
    )
    for metric, found in result["metrics"].items():
        if len(result["metrics"]) > 1 or metric != "mean":
            error = "" if found["stderr"] is None else f" ± {found['stderr']:.3f}"
            of = "" if found["prompts"] == prompts else f", of {found['prompts']} prompts"
            print(f"  {metric} {_number(found['value'])}{error}{of}")
    for sample in result["samples"]:
        print(f"  {sample['prompt']!r} -> {sample['response']!r}  (reward {sample['reward']})")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
