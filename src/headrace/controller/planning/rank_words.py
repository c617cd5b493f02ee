"""In words: the ranks of a model, and the Ray that they are in."""

from __future__ import annotations

from headrace.config.layout import LayoutConfig
from headrace.config.values.hosts import is_loopback
from headrace.controller.planning.planned_model import PlannedModel
from headrace.controller.planning.trained_memory import stages_of


def ranks_in_words(layout: LayoutConfig, stages: str, *, on_device: bool) -> str:
    """As `2 rank(s) (d2), each in a process of its own`. `stages`: see `stages_in_words`."""
    told = f"{layout.ranks} rank(s) ({layout.text}{stages}), each in a process of its own"
    if on_device and layout.ranks > 1:
        told += " and on a device of its own"
        told += ", by NCCL (not run: Headrace's tests have one device)" if layout.stage else ""
    return told


def stages_in_words(layout: LayoutConfig, model: PlannedModel) -> str:
    """As `, in stages of 3, 3, 2 layers`; nothing without stages."""
    if layout.pp == 1:
        return ""
    return f", in stages of {', '.join(map(str, stages_of(layout, model)))} layers"


def ray_in_words(address: str | None) -> str:
    """Where it is."""
    return f"the cluster at {address}" if address else "a cluster of this run's own, on loopback alone"


def network_notes(host: str, ranks: int) -> list[str]:
    """A line, where so many ranks of one model may be on several machines, and meet at `host`."""
    if is_loopback(host) or ranks == 1:
        return []
    return [
        f"ray       ranks of one model on several machines meet on the network of {host}, by gloo, unencrypted, "
        "and whoever reaches their ports can take part; keep it to this run's machines"
    ]
