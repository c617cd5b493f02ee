"""Looks at the nodes on which workers are to be, before any of them is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.machine import loopback_here
from headrace.runtime.module_search import search_paths
from headrace.runtime.node_check import (
    Asked,
    NeededFile,
    Needs,
    NodeReport,
    NodeUnfit,
    look,
    require,
    require_met,
    require_shared,
    require_stores,
    require_together,
)
from headrace.runtime.placing import kind_of
from headrace.runtime.ray import nodes

_LOOK_S = 120.0
"""A node's first process may come from a slow disk."""


class Scout:
    """An actor."""

    def look(self, asked: str) -> str:
        """`Asked`, and `NodeReport`: JSON."""
        return look(Asked.parse(asked)).text()


class Inspection:
    """Of nodes that are not the controller's, each once for each kind of worker."""

    def __init__(
        self,
        asked: AskedOfNodes,
        memory: Path,
    ) -> None:
        """`memory`: a file in the memory of the controller's machine, of this run alone."""
        self._host_key = asked.host_key
        self._shared = asked.shared
        self._needs = asked.needs(memory)
        self._meet = asked.meet
        self._home: str | None = None
        self._memory = NeededFile.of(
            memory, "the memory of the machine where the command is", "place workers of a run on nodes of one machine"
        )
        self._near = False
        self.all_near = True
        """Whether all nodes that were looked at have that memory."""
        self.together = asked.together
        self._done: set[tuple[str, str]] = set()
        self._machines: dict[str, str] = {}
        """By node."""

    def stay_near(self) -> None:
        """Nodes without it are unfit from now on."""
        self._near = True

    def require(self, workers: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        """`workers` by node; those that are to be together are looked at as far as they are named here. Of each node
        its machine's loopback. Blocking. Raises NodeUnfit."""
        own, names = nodes.here(), nodes.living()
        asked: dict[str, Needs] = {}
        for node, there in workers.items():
            if node == own:
                continue
            if node not in names:
                raise NodeUnfit(
                    f"the node {node[:8]} does not answer, and is to have {', '.join(there)}; look whether it is up"
                )
            kinds = dict.fromkeys(kind_of(worker) for worker in there)
            if any((node, kind) not in self._done for kind in kinds):
                of_kinds = [self._needs.get(kind, Needs()) for kind in kinds]
                files = [file for needs in of_kinds for file in needs.files] + [self._memory] * self._near
                modules = [module for needs in of_kinds for module in needs.modules]
                asked[node] = Needs(tuple(dict.fromkeys(files)), tuple(dict.fromkeys(modules)))
        found = seen({node: self._asked(needs) for node, needs in asked.items()}, names)
        memory = self._memory
        self.all_near &= all(each.digests.get(memory.path) == memory.digest for each in found.values())
        if self._shared is not None:
            shared, self._shared = self._shared, None
            looks, near = {**found, own: look(Asked())}, self.all_near
            needed = shared.on_nodes(workers, {node: each.memory for node, each in looks.items()}, own, near=near)
            require_shared(names, looks, needed)
            if not near:
                hosts = {node: each.host for node, each in looks.items()}
                require_stores(names, hosts, nodes.stores(), shared.in_stores(workers, own))
        for node, needs in asked.items():
            require(names[node], found[node], needs, workers[node])
        self._machines |= {own: loopback_here(), **{node: each.loopback for node, each in found.items()}}
        self._done |= {(node, kind_of(worker)) for node, there in workers.items() for worker in there}
        machines = {node: self._machines[node] for node in workers}
        on = {worker: machines[node] for node, there in workers.items() for worker in there}
        for kind in self.together:
            of_kind = {worker: machine for worker, machine in on.items() if kind_of(worker) == kind}
            require_together(of_kind, self._host_key)
        if meeting := {worker: machine for worker, machine in on.items() if kind_of(worker) in self._meet}:
            if self._home is None:
                first = (machine for worker, machine in meeting.items() if kind_of(worker) == self._meet[0])
                self._home = next(first, self._machines[own])
            require_met(meeting, self._home)
        return machines

    def _asked(self, needs: Needs) -> Asked:
        whole = [*(file.path for file in needs.files if not file.sampled), self._memory.path]
        sampled = [file.path for file in needs.files if file.sampled]
        return Asked(whole, sampled, [module.name for module in needs.modules], search_paths())


def seen(asked: Mapping[str, Asked], names: Mapping[str, str]) -> Mapping[str, NodeReport]:
    """What is on each node, by its id; `names` for people. Blocking. Raises NodeUnfit."""
    scouts: dict[str, Any] = {}
    for node in asked:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        scouts[node] = ray.remote(Scout).options(num_cpus=0, scheduling_strategy=there, max_restarts=0).remote()
    answers = {node: scout.look.remote(asked[node].text()) for node, scout in scouts.items()}
    found = {}
    try:
        for node, answer in answers.items():
            try:
                found[node] = NodeReport.parse(ray.get(answer, timeout=_LOOK_S))
            except RayError as error:
                words = " ".join(str(error).split())[:300]
                raise NodeUnfit(
                    f"the node {names[node]} runs nothing of Headrace: {words}; install Headrace there as it is here, "
                    f"and look whether the node is up and has ports free"
                ) from error
    finally:
        for scout in scouts.values():
            ray.kill(scout, no_restart=True)
    return found
