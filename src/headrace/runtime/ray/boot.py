"""What an actor is made with: plain data, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class ActorBoot:
    kind: str
    """Where the worker's class is: module:Class."""
    packages: list[str]
    """Under which it has to be."""
    name: str
    rank: int
    generation: int
    """How many of the name were before."""
    threads: int | None
    limits: dict[str, float]
    """See `Placement.limits`."""
    namespace: str
    """Of the run's actors."""
    folder: str
    """Of the site, for one that listens there."""
    log: str | None
    """A file that takes what it prints."""
    paths: list[str]
    """Where the controller looks for modules."""
    versions: dict[str, str]
    """See `node_check.versions`: those where the controller is."""
    devices: str | None
    """The controller's CUDA_VISIBLE_DEVICES: Ray shows an actor that counts as using none no device."""
    has_devices: bool
    """Whether Ray gives it devices of its own, and shows it those."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> ActorBoot:
        told = json.loads(text)
        return cls(**{field.name: told[field.name] for field in fields(cls)})
