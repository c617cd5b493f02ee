"""The nodes of the cluster that this process is in, and what they have left. All of it blocks for a moment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import ray
from ray._private.state import available_resources_per_node

from headrace.runtime.placing import Node

_ANSWER_S = 2.0


def here() -> str:
    """The id of the node that this process is on."""
    found: str = ray.get_runtime_context().get_node_id()
    return found


def living() -> Mapping[str, str]:
    """By id, what people call each: its address, and the beginning of its id, since one machine may have several."""
    return {each["NodeID"]: _name(each) for each in _there()}


def stores() -> Mapping[str, int]:
    """By id, bytes of each node's object store."""
    return {each["NodeID"]: int(each["Resources"].get("object_store_memory", 0)) for each in _there()}


def nodes(device: str) -> list[Node]:
    """This one first. `device`: the resource that counts as devices. Ray tells how much of it is free, not of which
    device: parts are taken to be of as few as can be."""
    own, free = here(), available_resources_per_node()
    found = []
    for each in _there():
        id, total = each["NodeID"], each["Resources"]
        left = free.get(id, {})
        count, rest = int(total.get(device, 0)), float(left.get(device, 0.0))
        parts = tuple(round(min(max(rest - number, 0.0), 1.0), 4) for number in range(count))
        found.append(Node(id, _name(each), float(left.get("CPU", 0.0)), parts, here=id == own))
    return sorted(found, key=lambda node: (not node.here, node.id))


def _there() -> list[Mapping[str, Any]]:
    """Those that live, and whose raylet answers: Ray takes a lost one for living for a quarter of a minute."""
    return [each for each in ray.nodes() if each["Alive"] and _answers(each)]


def _answers(node: Mapping[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=_ANSWER_S).close()
    except OSError:
        return False
    return True


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
