"""What a run asks of the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.runtime.node_check import Needs, SharedNeeds
from headrace.runtime.placing import Teams


def _nothing(memory: Path) -> Mapping[str, Needs]:
    return {}


@dataclass(frozen=True, slots=True)
class AskedOfNodes:
    """Nothing, unless given. Kinds are of workers."""

    teams: Teams = field(default_factory=Teams)
    """What workers claim."""
    needs: Callable[[Path], Mapping[str, Needs]] = _nothing
    """Given a file in the memory of the controller's machine, what the nodes of workers have to have, by their kind."""
    together: tuple[str, ...] = ()
    """Kinds whose workers are to be on one machine."""
    meet: tuple[str, ...] = ()
    """Kinds whose workers meet on the loopback of the machine where the first kind is, or where the controller is, if
    that has no place."""
    shared: SharedNeeds | None = None
    """Of memory that processes of a machine share; looked at once."""
    host_key: str = "weights.host"
    """Of the config, that says where workers that are to be together meet otherwise."""
    room_s: float = 300.0
    """For which a worker waits for room."""
