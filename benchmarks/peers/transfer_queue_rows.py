"""TransferQueue's side of `benchmarks.ray_rows`: the same three actors, through its client. Prints one JSON line.

Run with the interpreter of an environment that has it: `python transfer_queue_rows.py CYCLES`.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

ROWS, NUMBERS, PAUSE_S, WARM_UP, AHEAD = 64, 1024, 0.02, 20, 4
POLL_S = 0.001
LOADER_POLL_S, LOADER_PAUSES_S = 1.0, [0.83, 1.37, 1.61, 1.13, 1.91, 1.49, 0.97, 1.73, 1.21, 1.57]
"""As `StreamingDataset` waits for rows."""


@ray.remote(num_cpus=0)
class RowActor:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        tq.init()
        self._client = tq.get_client()

    def make(self, partition: str, cycles: int, pauses_s: list[float], window: Any) -> list[float]:
        put = []
        for number in range(cycles):
            while number - ray.get(window.done.remote()) >= AHEAD and not pauses_s:
                time.sleep(0.001)
            rows = torch.randn(ROWS, NUMBERS)
            self._client.put(data=TensorDict({"x": rows}, batch_size=ROWS), partition_id=partition)
            put.append(time.monotonic())
            if pauses_s:
                time.sleep(pauses_s[number % len(pauses_s)])
        return put

    def fill(self, partition: str, cycles: int, poll_s: float) -> list[float]:
        came = []
        for _ in range(cycles):
            meta = self._meta(partition, ["x"], "fill", poll_s)
            rows = self._client.get_data(meta)["x"]
            came.append(time.monotonic())
            column = torch.stack([row[:1] * 2 for row in rows])
            self._client.put(data=TensorDict({"y": column}, batch_size=ROWS), metadata=meta)
        return came

    def take(self, partition: str, cycles: int, window: Any) -> float:
        total = 0.0
        for number in range(cycles):
            meta = self._meta(partition, ["x", "y"], "take", POLL_S)
            data = self._client.get_data(meta)
            total += float(sum(x[0] for x in data["x"]) + sum(y[0] for y in data["y"]))
            self._client.clear_samples(meta)
            window.tell.remote(number + 1)
        return total

    def _meta(self, partition: str, fields: list[str], task: str, poll_s: float) -> Any:
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            meta = self._client.get_meta(data_fields=fields, batch_size=ROWS, partition_id=partition, task_name=task)
            if len(meta) == ROWS:
                return meta
            time.sleep(poll_s)
        raise RuntimeError("no rows came")


@ray.remote(num_cpus=0)
class Window:
    """How many cycles are done, so that the first actor is not far ahead."""

    def __init__(self) -> None:
        self._done = 0

    def tell(self, number: int) -> None:
        self._done = number

    def done(self) -> int:
        return self._done


def run(
    actors: list[Any], partition: str, cycles: int, pauses_s: list[float], poll_s: float = POLL_S
) -> tuple[float, list[float]]:
    make_window: Any = Window
    window = make_window.remote()
    began = time.monotonic()
    put, came, _ = ray.get(
        [
            actors[0].make.remote(partition, cycles, pauses_s, window),
            actors[1].fill.remote(partition, cycles, poll_s),
            actors[2].take.remote(partition, cycles, window),
        ],
        timeout=300,
    )
    return time.monotonic() - began, [there - then for then, there in zip(put, came, strict=True)]


def main(cycles: int) -> None:
    logging.disable(logging.INFO)
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
    # Else its controller sleeps while it waits for rows, and hears of none.
    tq.init(OmegaConf.create({"controller": {"polling_mode": True}}))
    make_actor: Any = RowActor
    actors = [make_actor.remote() for _ in range(3)]
    run(actors, "warm", WARM_UP, [])
    seconds, _ = run(actors, "rows", cycles, [])
    _, waits = run(actors, "paced", cycles, [PAUSE_S])
    _, loader_waits = run(actors, "loader", len(LOADER_PAUSES_S), LOADER_PAUSES_S, LOADER_POLL_S)
    found = {
        "rows_per_s": ROWS * cycles / seconds,
        "wake_up_ms": 1e3 * statistics.median(waits),
        "loader_wake_up_ms": 1e3 * statistics.median(loader_waits),
    }
    print(json.dumps(found))
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
