"""Columns that a keeper on another machine has, asked for in each of three ways after that machine has fallen silent.

python ray_silent.py ADDRESS HOST

Prints "kept" once they are there; goes on at a line of its input; prints how each way ended, as JSON. The keeper is
declared lost a second later.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace.runtime.ray.refs import ActorRefs
from headrace.runtime.ray.shelf import SHELF, Shelf
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes

_SPACE, _KEEPER = "silent", "rollout/0"


class Keeper:
    def keep(self, count: int) -> list[tuple[int, ...]]:
        self.refs = ActorRefs(_KEEPER, 0, WireTypes(), _SPACE)
        kept = []
        for number in range(count):
            kept.append((self.refs.put({"tokens": np.arange(1000) + number}).number,))
            time.sleep(0.1)  # each is an object of its own
        return kept


def main(address: str, host: str) -> None:
    ray.init(address=address, namespace=_SPACE, log_to_driver=False, configure_logging=False)
    (there,) = (each["NodeID"] for each in ray.nodes() if each["NodeManagerAddress"] == host)
    head = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": SHELF, "namespace": _SPACE, "num_cpus": 0, "max_concurrency": 10}
    shelf: Any = ray.remote(Shelf).options(scheduling_strategy=head, **options).remote()
    far = NodeAffinitySchedulingStrategy(there, soft=False)
    keeper: Any = ray.remote(Keeper).options(num_cpus=0, scheduling_strategy=far).remote()
    kept = ray.get(keeper.keep.remote(7), timeout=60)
    first, *others = (Ref(_KEEPER, number, ("tokens",)) for (number,) in kept)
    refs = ActorRefs("", 0, WireTypes(), _SPACE)
    assert refs.get(first)["tokens"].sum() == 499_500
    say("kept")
    sys.stdin.readline()
    ways: Mapping[str, Callable[[], Any]] = {
        "get": lambda: refs.get(others[0]),
        "fetched": lambda: refs.fetched([others[1], others[2]]),
        "get_soon": lambda: asyncio.run(refs.get_soon(others[3])),
    }
    ended: dict[str, tuple[float, str]] = {}

    def tried(name: str) -> None:
        began = time.monotonic()
        try:
            ways[name]()
            told = "came"
        except RefLost as lost:
            told = str(lost)
        ended[name] = time.monotonic() - began, told

    asking = [threading.Thread(target=tried, args=(name,)) for name in ways]
    for each in asking:
        each.start()
    time.sleep(1)
    ray.get(shelf.forget.remote(_KEEPER, 1 << 40), timeout=60)
    for each in asking:
        each.join()
    say(json.dumps(ended))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
