"""How weights leave the trainer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from headrace.config.base import Section
from headrace.config.values.hosts import one_host


class WeightsConfig(Section):
    transport: Literal["memory", "shm", "cuda_ipc", "disk", "gloo", "collective"] | None = None
    """How weights reach engines: `memory` within one process, `shm` through memory that processes of one machine share,
    `cuda_ipc` through memory of their CUDA device, `disk` through the run's folder. `gloo`: inference servers get them
    over TCP, also on other machines, and whoever else takes them by `shm`. `collective`: each that takes them has a
    process beside it, a relay, and relays pass them on in a chain (`relay_backend`). Unless given, `memory`, but with
    models in processes of their own `cuda_ipc` where all of them are Headrace's, on one CUDA device, and whole, else
    `shm`, and for those on nodes of a Ray cluster that do not see the trainer's memory `collective`. With Ray
    `cuda_ipc` is never chosen, and has to be given."""
    deltas: bool | None = None
    """Whether relays are sent what changed since the version that they have, lossless, where that is less. Unless
    given, they are where some are on other machines than the trainer: on one machine the whole is faster. Ranks that
    have cut the model up, on other machines than the first, send what changed of their own parts, unless it is
    false."""
    relay_backend: Literal["gloo"] | None = None
    """By what relays speak. Unless given, NCCL where the trainer and each that has a relay are on a CUDA device of
    their own, and gloo elsewhere, or once NCCL has failed. NCCL takes some hundred MiB of each device."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """The address of the trainer's machine from which servers on other machines get weights with `gloo`, and on whose
    network relays, and ranks of one model, meet where they are on several, wherever the trainer is; at ports that are
    free. Nothing there is encrypted, and whoever reaches the ports can take part: let it be on a network of the run's
    own machines. On one machine all get them, and meet, on loopback."""

    @field_validator("host")
    @classmethod
    def _host_is_one(cls, given: str) -> str:
        return one_host(given)
