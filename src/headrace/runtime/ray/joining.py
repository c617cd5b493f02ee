"""Into a cluster, and out of it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray._private import worker
from ray.exceptions import RayError

from headrace.runtime.node_check import NodeUnfit
from headrace.runtime.placing import Node, NoRoom, Placed, Teams, by_node, placed
from headrace.runtime.ray import nodes
from headrace.runtime.ray.admission import (
    ClusterError,
    ClusterRefusal,
    host_and_port,
    require_admission,
    require_node,
    require_same_cluster,
)
from headrace.runtime.ray.scouts import Inspection
from headrace.runtime.ray.signal_handlers import kept_signal_handlers

logger = logging.getLogger(__name__)

_WORDS = 300
"""Characters of Ray's own error."""


class Reached:
    """Whether a cluster that was joined is there: whether somebody listens at its head's address."""

    def __init__(self, address: str, *, look_s: float = 2.0, lost_s: float = 10.0) -> None:
        """`look_s`: between two looks, seconds. `lost_s`: nobody has to have answered for so long."""
        self._address = address
        self._at = host_and_port(address)
        self._look_s = look_s
        self._lost_s = lost_s
        self._looks = self._answered = time.monotonic()
        self.answers = True
        """When it was looked at last."""

    def lost(self) -> str | None:
        """Why it is, if it is. Blocking, for `look_s` at most."""
        now = time.monotonic()
        if now < self._looks:
            return None
        self._looks = now + self._look_s
        try:
            socket.create_connection(self._at, timeout=self._look_s).close()
        except OSError as error:
            self.answers = False
            silent = time.monotonic() - self._answered
            if silent < self._lost_s:
                return None
            return f"nobody has answered at its head's address {self._address} for {silent:.0f} s ({error})"
        self._answered, self.answers = time.monotonic(), True
        return None


def join(address: str, namespace: str) -> None:
    """Blocking. Raises ClusterError."""
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of a handler for signals, which are ours to handle
    try:
        require_admission(address)
        with kept_signal_handlers():
            ray.init(address=address, log_to_driver=False, configure_logging=False, namespace=namespace)
    except ClusterError:
        raise
    except (RayError, OSError, RuntimeError, ValueError) as error:
        if type(error) is RuntimeError:  # it has waited for a node here
            require_node(address)
        words = " ".join(str(error).split())
        raise ClusterError(
            f"no Ray cluster answers at {address}: {words[:_WORDS]}; correct runtime.address, or look whether the "
            "cluster is up (`ray status` on a node of it)"
        ) from error
    _keep_quiet()


def own_address() -> str:
    """Of the head of the cluster that this process is in."""
    address: str = ray.get_runtime_context().gcs_address
    return address


def leave() -> None:
    """Blocking."""
    with kept_signal_handlers():
        ray.shutdown()


def _keep_quiet() -> None:
    """What Ray tells every driver of a node that was lost, with the end of its log, it prints over what a run shows;
    there is no setting for it."""

    def noted(data: Any, ignore_prefix: bool) -> None:
        logger.debug("%s", data)

    worker.print_to_stdstream = noted


def looked_at(address: str, teams: Teams, inspection: Inspection) -> tuple[Sequence[Node], Sequence[Placed]]:
    """The nodes of a cluster, and which of them `teams` would be on now; nothing is reserved. Blocking. Raises
    ClusterError, ClusterRefusal."""
    joins = not ray.is_initialized()
    if joins:
        join(address, "headrace-check")
    else:
        require_same_cluster(address, own_address())
    try:
        there = nodes.nodes(teams.device)
        found = placed(teams.teams, there, teams.device, inspection.together, mend=teams.mend)
        inspection.require(by_node(found))
        return there, found
    except (NoRoom, NodeUnfit) as error:
        raise ClusterRefusal(str(error)) from error
    finally:
        if joins:
            leave()
