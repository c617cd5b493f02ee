"""The CPU that a run's record and one tracker take, as a share of all that the run takes.

    python -m benchmarks.tracking [--trackers csv tensorboard ...] [--batches 30] [--runs 1] [--tiny]

Each run is `headrace train` in a process of its own, with one tracker and the model, prompts and sizes of
`benchmarks/end_to_end.py`. Recording: the CPU time of the threads inside `Recorder`,
and of writing the samples that are kept to be read. The tracker: that of its process
and of those that it started, import of the library included, as last seen while they lived (looked at every 50 ms). The
run: all of its processes. W&B is offline, MLflow on SQLite, Trackio on this machine; their packages are those of `make
trackers-env`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts

RECORDING = ("batch", "evaluation", "event", "progress")
LOOK_S = 0.05
PROGRAM = "headrace.observe.trackers.process"


def section(tracker: str, folder: Path) -> dict[str, Any]:
    given: dict[str, dict[str, Any]] = {
        "wandb": {"mode": "offline"},
        "mlflow": {"uri": f"sqlite:///{folder}/mlflow.db"},
    }
    return {"type": tracker, **given.get(tracker, {})}


def own(config: str, folder: str) -> None:
    """The child of `measure`: the run."""
    from headrace.cli.main import main as headrace
    from headrace.controller.recorder import Recorder
    from headrace.roles import rollout_record
    from headrace.store.rollouts import Rollouts

    spent = [0.0]

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*args)
            finally:
                spent[0] += time.thread_time() - began

        return call

    for name in RECORDING:
        setattr(Recorder, name, timed(getattr(Recorder, name)))
    rollout_record.rollout_of = timed(rollout_record.rollout_of)
    Rollouts.write = timed(Rollouts.write)  # type: ignore[method-assign]
    watch = Watch()
    watch.start()
    code = headrace(["train", config, "--dir", folder, "--plain"])
    watch.end()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    whole = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    print(json.dumps({"code": code, "record_s": spent[0], "tracker_s": watch.seconds, "run_s": whole}))


class Watch(threading.Thread):
    """The CPU seconds of the tracker's processes, each as last seen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._seen: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        return sum(self._seen.values())

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            for child in psutil.Process().children():
                try:
                    if PROGRAM in child.cmdline():
                        self._look(child)
                except psutil.Error:
                    continue

    def _look(self, tracker: psutil.Process) -> None:
        for process in [tracker, *tracker.children(recursive=True)]:
            times = process.cpu_times()
            self._seen[process.pid] = times.user + times.system

    def end(self) -> None:
        self._ended.set()
        self.join()


def measure(folder: Path, tracker: str, batches: int, tiny: bool) -> dict[str, float]:
    """One run: CPU seconds of the record, of the tracker, and of all."""
    run = Path(tempfile.mkdtemp(dir=folder))
    config = {
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / "prompts.jsonl")},
        "reward": {"function": "benchmarks.rewards:reward"},
        "rollout": {
            "prompts_per_batch": 2 if tiny else 8,
            "samples_per_prompt": 8,
            "sampling": {"max_new_tokens": 8 if tiny else 128},
            "filters": [],
        },
        "trainer": {"batches": batches, "optimizer": {"lr": 1e-5}},
        "engine": {"max_concurrent_sequences": 64, "max_context": 160},
        "checkpoint": {"every": 1000},
        "track": [section(tracker, run)],
    }
    (run / "grpo.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "benchmarks.tracking", "--own", str(run / "grpo.yaml"), str(run / "run")]
    environment = {**os.environ, "TRACKIO_DIR": str(run / "trackio")}
    out = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=environment, check=False)
    if out.returncode or "tracker_failed" in out.stderr + out.stdout:
        raise RuntimeError((out.stdout + out.stderr)[-2000:])
    values: dict[str, float] = json.loads(out.stdout.splitlines()[-1])
    return {**values, "share": (values["record_s"] + values["tracker_s"]) / values["run_s"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trackers", nargs="+", default=["csv", "tensorboard", "wandb", "mlflow", "trackio"])
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--own", nargs=2, metavar=("CONFIG", "DIR"))
    args = parser.parse_args()
    if args.own:
        own(*args.own)
        return
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "model", 0.0)
        for tracker in args.trackers:
            runs = [measure(folder, tracker, args.batches, args.tiny) for _ in range(args.runs)]
            keys = ("record_s", "tracker_s", "run_s", "share")
            result[tracker] = {key: spread([run[key] for run in runs]) for key in keys}
            print(json.dumps({tracker: result[tracker]}), flush=True)
    if not args.tiny:
        save("tracking", {"batches": args.batches, "runs": args.runs, "cpu": result})


if __name__ == "__main__":
    main()
