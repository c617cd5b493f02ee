"""Parquet of a million prompts, in verl's columns and one row group, drawn in a seeded shuffle: how long until the
first prompt is there, and how much memory that takes above what the process had before.

python -m benchmarks.million_prompts [--rows 1000000] [--runs 3] [--folder FOLDER]

`data` is what reads and orders the prompts; every row is looked at meanwhile. `plan` is all that `headrace check` and
`headrace train` do before they load the model, the encoding of the longest prompts included, less what it takes with a
file of 100 rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from benchmarks.machine import save, spread

DRAWN = 20_000
MIB = 1 << 20
_CHUNK = 100_000
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)


def texts(numbers: range) -> list[str]:
    """Letters and spaces, which no packer makes much smaller than five bits each."""
    drawn = np.random.default_rng(numbers.start).integers(0, 27, 240 * len(numbers), np.uint8)
    letters = _LETTERS[drawn].tobytes().decode()
    return [letters[240 * place : 240 * place + 160 + i % 80] for place, i in enumerate(numbers)]


def write_parquet(path: Path, rows: int) -> None:
    """About 210 characters a prompt."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for start in range(0, rows, _CHUNK):
        numbers = range(start, min(start + _CHUNK, rows))
        parts.append(
            pa.table(
                {
                    "data_source": ["openai/gsm8k"] * len(numbers),
                    "prompt": [
                        [{"role": "user", "content": f"{i} + {i * 7 % 1000} = {text}"}]
                        for i, text in zip(numbers, texts(numbers), strict=True)
                    ],
                    "ability": ["math"] * len(numbers),
                    "reward_model": [{"ground_truth": str(i + i * 7 % 1000), "style": "rule"} for i in numbers],
                    "extra_info": [{"answer": "number " * 10, "index": i, "split": "train"} for i in numbers],
                }
            )
        )
    pq.write_table(pa.concat_tables(parts), path, row_group_size=rows)


def make_files(folder: Path, rows: int) -> None:
    """Model, data and configs."""
    from benchmarks.policy_model import make_model

    make_model(folder / "model", 1 / 32)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "model" / "chat_template.jinja").write_text(template)
    for file, size in (("small.parquet", 100), ("million.parquet", rows)):
        write_parquet(folder / file, size)
        config_of(folder, file)


def config_of(folder: Path, file: str) -> Path:
    config = {
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / file), "id_column": "extra_info.index"},
        "reward": {"function": "exact", "answer_column": "reward_model.ground_truth"},
        "rollout": {"sampling": {"max_new_tokens": 16}},
        "trainer": {"batches": 10},
    }
    path = folder / f"{file}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def peak_bytes() -> int:
    """Of this process alone: getrusage's figure begins with that of the process which started it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measure_data(folder: Path) -> dict[str, float]:
    """In a process of its own."""
    from headrace.config import TrainConfig, load_config
    from headrace.controller.planning.rows import open_sources
    from headrace.experience.prompts.dataset import PromptOrder, PromptSource
    from headrace.experience.prompts.prompt_order import FixedOrder, MixedOrder

    config = load_config(TrainConfig, folder / "million.parquet.yaml")
    before, began, cpu_before = psutil.Process().memory_info().rss, time.perf_counter(), time.process_time()
    dataset = open_sources(config, config.data.sources, config.data.prompt_column, config.reward)
    opened = time.perf_counter()
    sizes = [len(dataset)]
    orders = [FixedOrder(PromptOrder(sizes[0], config.seed, shuffle=True), None, descending=False)]
    source = PromptSource(dataset, MixedOrder(orders, sizes, sizes), epochs=1, max_attempts=1)
    first = source.next()
    started, cpu = time.perf_counter(), time.process_time()
    assert first is not None
    seen = {first.prompt.prompt_id}
    for _ in range(DRAWN - 1):
        issued = source.next()
        assert issued is not None
        seen.add(issued.prompt.prompt_id)
    ended = time.perf_counter()
    assert len(seen) == DRAWN
    return {
        "rows": len(dataset),
        "look_at_all_s": opened - began,
        "start_s": started - began,
        "start_cpu_s": cpu - cpu_before,
        "prompt_ms": (ended - started) / (DRAWN - 1) * 1e3,
        "above_baseline_mib": (peak_bytes() - before) / MIB,
    }


def measure_plan(folder: Path) -> dict[str, float]:
    """In a process of its own, which has imported and read all else with a small file before."""
    from headrace.config import TrainConfig, load_config
    from headrace.controller.planning.plan import make_plan

    times = []
    for file in ("small.parquet", "small.parquet", "million.parquet"):
        config = load_config(TrainConfig, folder / f"{file}.yaml")
        before, began = psutil.Process().memory_info().rss, time.perf_counter()
        plan = make_plan(config)
        times.append(time.perf_counter() - began)
    assert len(plan.prompts) > 100
    return {"start_s": times[2] - times[1], "above_baseline_mib": (peak_bytes() - before) / MIB}


def _child(what: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.million_prompts", "--child", what, str(folder)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    result: dict[str, float] = json.loads(told.splitlines()[-1])
    return result


def _spread(results: list[dict[str, float]]) -> dict[str, Any]:
    return {name: spread([result[name] for result in results]) for name in results[0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where the files are, or are made and stay")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "FOLDER"))
    args = parser.parse_args()
    if args.child is not None:
        what, folder = args.child
        print(json.dumps((measure_data if what == "data" else measure_plan)(Path(folder))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(args.folder or name)
        if not (folder / "million.parquet").exists():
            make_files(folder, args.rows)
        load = [psutil.getloadavg()[0]]
        results = {what: _spread([_child(what, folder) for _ in range(args.runs)]) for what in ("data", "plan")}
        load.append(psutil.getloadavg()[0])
        size = (folder / "million.parquet").stat().st_size / MIB
    result = {
        "rows": args.rows,
        "load": "one-minute averages before and after; above 1 other processes ran on the same cores",
        "file_mib": size,
        "seed": 0,
        "pyarrow": version("pyarrow"),
        "load_before_and_after": load,
        **results,
    }
    print(json.dumps(result))
    save("million_prompts", result)


if __name__ == "__main__":
    main()
