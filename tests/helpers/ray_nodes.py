"""A Ray of a test's own: a head on loopback, and more nodes on this machine."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest import mock

import psutil
from ray_node import UP

from headrace.controller.building.ray_head import RayHead

Node = subprocess.Popen[str]
_NODE = Path(__file__).parent / "ray_node.py"


def can_unshare(what: str) -> bool:
    """Whether a process may have such namespaces of its own, as -rm."""
    return subprocess.run(["unshare", what, "true"], capture_output=True).returncode == 0


class Nodes:
    """`address` is the head's. Whoever joins needs `environment`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], head: Mapping[str, int]) -> None:
        self._head = RayHead(4, folder / "ray.log", head)
        self.environment = dict(environment)
        self.address = self._head.start()

    @contextmanager
    def node(self, *before: str, cpus: int = 4, **resources: int) -> Iterator[Node]:
        """See `node`."""
        with node(self.address, self.environment, *before, cpus=cpus, **resources) as process:
            yield process

    def close(self) -> None:
        self._head.close()


@contextmanager
def node(address: str, environment: Mapping[str, str], *before: str, cpus: int = 4, **resources: int) -> Iterator[Node]:
    """One more node of the cluster at `address`. `before`: what starts it, as `unshare`."""
    told = json.dumps({"num_cpus": cpus, "resources": resources})
    line = [*before, sys.executable, str(_NODE), address, told]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == UP
        yield process
    finally:
        left = below(process)
        process.terminate()
        process.wait(20)
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All that it started."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def raylet(process: Node) -> psutil.Process:
    (found,) = (each for each in below(process) if each.name() == "raylet")
    return found


def lose(process: Node) -> None:
    """As if its machine had gone."""
    os.kill(raylet(process).pid, signal.SIGKILL)


@contextmanager
def nodes(folder: Path, **head: int) -> Iterator[Nodes]:
    """`head`: logical devices of the head's node."""
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment))
        made = Nodes(folder, environment, head)
        stack.callback(made.close)
        yield made
