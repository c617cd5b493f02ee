"""What an actor is made with: plain data, as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.runtime.process.boot import WorkerBoot


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorBoot(WorkerBoot):
    """`folder` is empty for one that listens nowhere."""

    namespace: str
    """Of the run's actors."""
    log: str | None
    """A file that takes what it prints."""
    versions: dict[str, str]
    """See `node_check.versions`: those where the controller is."""
    devices: str | None
    """The controller's CUDA_VISIBLE_DEVICES: Ray shows an actor that counts as using none no device."""
    has_devices: bool
    """Whether Ray gives it devices of its own, and shows it those."""
