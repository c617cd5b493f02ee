"""What engines and trainer need of memory that they have by turns."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import TrainConfig

GENERATED, TRAINED, BEGUN = "while a batch is generated", "while it is trained", "at the start, as models are loaded"
_OF_ENGINES = ("engine: ",)
_OF_TRAINING = ("trainer: ", "critic: ")
_WORKED_OUT_AGAIN = ("trainer: gradients", "trainer: bfloat16 weights")
"""What those that train give back in the host's memory; on a device they give back all."""
_NOT_AT_THE_START = (
    "checkpoint: ",
    "engine: KV cache",
    "engine: activations",
    "trainer: activations",
    "critic: activations",
)


def by_turns(config: TrainConfig, uses: Mapping[str, int], *, on_device: bool) -> dict[str, int]:
    """Bytes at each time, of what a run takes in all; nothing where they do not take turns."""
    if not config.engine.colocated:
        return {}
    return {
        GENERATED: sum(generating(config, uses, on_device=on_device).values()),
        TRAINED: sum(size for use, size in uses.items() if not use.startswith(_OF_ENGINES)),
        BEGUN: sum(size for use, size in uses.items() if not use.startswith(_NOT_AT_THE_START)),
    }


def generating(config: TrainConfig, uses: Mapping[str, int], *, on_device: bool) -> dict[str, int]:
    """Of what a run takes in all, what is there while a batch is generated: of all where they take no turns."""
    if not config.engine.colocated:
        return dict(uses)
    given_back: tuple[str, ...] = _OF_TRAINING if on_device else _WORKED_OUT_AGAIN
    if on_device and config.algorithm.needs_reference and config.reference.placement == "hybrid":
        given_back = (*given_back, "reference: ")
    return {use: size for use, size in uses.items() if not use.startswith(given_back)}
