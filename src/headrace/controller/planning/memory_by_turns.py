"""What engines and trainer need of memory that they have by turns, or that is lent."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import TrainConfig

GENERATED, TRAINED, BEGUN = "while a batch is generated", "while it is trained", "at the start, as models are loaded"
LENT, KEPT = "while the trainer's devices are lent", "while it has them"
OF_LENT = "lent engines: "
"""Begins the uses of those."""
_OF_ENGINES = ("engine: ",)
_OF_TRAINING = ("trainer: ", "critic: ")
_WORKED_OUT_AGAIN = ("trainer: gradients", "trainer: bfloat16 weights")
"""What those that train give back in the host's memory; on a device they give back all."""
_NOT_AT_THE_START = (
    "checkpoint: ",
    "engine: KV cache",
    "engine: activations",
    "engine: CUDA graphs",
    "engine: kept sets",
    "engine: swap check",
    f"{OF_LENT}KV cache",
    f"{OF_LENT}activations",
    f"{OF_LENT}CUDA graphs",
    f"{OF_LENT}kept sets",
    "trainer: activations",
    "critic: activations",
)


def by_turns(config: TrainConfig, uses: Mapping[str, int], *, on_device: bool) -> dict[str, int]:
    """Bytes at each time, of what a run takes in all; nothing where all of it is there at all times."""
    if not (config.engine.colocated or config.engine.lent):
        return {}
    of_engines = _OF_ENGINES if config.engine.colocated else (OF_LENT,)
    generated, trained = (GENERATED, TRAINED) if config.engine.colocated else (LENT, KEPT)
    return {
        generated: sum(generating(config, uses, on_device=on_device).values()),
        trained: sum(_without(uses, of_engines).values()),
        BEGUN: sum(_without(uses, _NOT_AT_THE_START).values()),
    }


def generating(config: TrainConfig, uses: Mapping[str, int], *, on_device: bool) -> dict[str, int]:
    """Of what a run takes in all, what is there while those that train sleep: of all where they never do."""
    if not (config.engine.colocated or config.engine.lent):
        return dict(uses)
    given_back: tuple[str, ...] = _OF_TRAINING if on_device else _WORKED_OUT_AGAIN
    if on_device and keeps_reference(config):
        given_back = (*given_back, "reference: ")
    return _without(uses, given_back)


def keeps_reference(config: TrainConfig) -> bool:
    """Whether the trainer has a copy of its own weights, which sleeps with it."""
    return config.algorithm.needs_reference and config.reference.placement == "hybrid"


def beside_caches(config: TrainConfig, uses: Mapping[str, int]) -> list[tuple[dict[str, int], int]]:
    """Of a device, what is there at each time beside KV caches, and how many of these are of lent engines then."""
    lent = config.engine.lent
    found = [(generating(config, uses, on_device=True), lent)]
    return [*found, (_without(uses, (OF_LENT,)), 0)] if lent else found


def _without(uses: Mapping[str, int], left_out: tuple[str, ...]) -> dict[str, int]:
    return {use: size for use, size in uses.items() if not use.startswith(left_out)}
