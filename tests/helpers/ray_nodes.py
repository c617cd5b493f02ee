"""A Ray of a test's own: a head on loopback, and more nodes on this machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil
from machines import Machine, two_machines
from ray_node import UP

from headrace.controller.building.ray_head import RayHead
from headrace.runtime.ports import free_port

Node = subprocess.Popen[str]
_UP_S = 90.0
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

    def processes(self, name: str) -> list[psutil.Process]:
        """Of the head's node: those that are called so, or have a command line with that word."""
        found = []
        for each in psutil.Process(os.getpid()).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if name in (each.name(), " ".join(each.cmdline())):
                    found.append(each)
        return found

    def close(self) -> None:
        self._head.close()


@contextmanager
def node(
    address: str,
    environment: Mapping[str, str],
    *before: str,
    cpus: int = 4,
    own: str = "127.0.0.1",
    **resources: int,
) -> Iterator[Node]:
    """One more node of the cluster at `address`. `before`: what starts it, as `unshare`. `own`: its address."""
    told = json.dumps({"num_cpus": cpus, "resources": resources})
    line = [*before, sys.executable, str(_NODE), address, told, own]
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


def _environment() -> dict[str, str]:
    """With a token of its own."""
    return {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }


@contextmanager
def nodes(folder: Path, **head: int) -> Iterator[Nodes]:
    """`head`: logical devices of the head's node."""
    environment = _environment()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment))
        made = Nodes(folder, environment, head)
        stack.callback(made.close)
        yield made


@dataclass(frozen=True, slots=True)
class Cluster:
    """Of two machines: the head is on the first, a node on the second."""

    first: Machine
    second: Machine
    address: str
    environment: Mapping[str, str]
    node: Node


@contextmanager
def machines(folder: Path, *, cpus: int = 4, **there: int) -> Iterator[Cluster]:
    """So many processors of each. Whoever joins is on one of them, with the environment. `there`: logical devices of
    the second."""
    environment = {**_environment(), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    temporary = Path(tempfile.mkdtemp(prefix="headrace-ray-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        first, second = stack.enter_context(two_machines())
        address = f"{first.address}:6379"
        line = [
            *(*first.enter, sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *(f"--node-ip-address={first.address}", "--port=6379", f"--num-cpus={cpus}", f"--temp-dir={temporary}"),
            *("--include-dashboard=false", "--disable-usage-stats"),
        ]
        output = stack.enter_context((folder / "ray.log").open("wb"))
        head = subprocess.Popen(line, stdout=output, stderr=output, env=environment)
        stack.callback(head.wait, 20)
        stack.callback(head.kill)
        reach = f"import socket; socket.create_connection(('{first.address}', 6379), 1)"
        end = time.monotonic() + _UP_S
        while subprocess.run([*first.enter, sys.executable, "-c", reach], capture_output=True).returncode:
            assert head.poll() is None, (folder / "ray.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        far = node(address, environment, *second.enter, cpus=cpus, own=second.address, **there)
        yield Cluster(first, second, address, environment, stack.enter_context(far))


JOB_SERVER = ("aiohttp_cors", "opencensus", "prometheus_client", "smart_open", "virtualenv", "colorful")
"""Packages of Ray's dashboard."""


@contextmanager
def job_server(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """A cluster of one node that takes jobs: its address, and the environment of those who may hand it some."""
    port, dashboard, temporary = free_port(), free_port(), Path(tempfile.mkdtemp(prefix="headrace-jobs-"))
    environment = {
        **_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(folder),
    }
    line = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1"),
        *(f"--port={port}", "--num-cpus=4", f"--temp-dir={temporary}", f"--ray-client-server-port={free_port()}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        f"--dashboard-agent-listen-port={free_port()}",
    ]
    with (folder / "jobs.log").open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, env=environment, text=True)
    try:
        end = time.monotonic() + _UP_S
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", dashboard), timeout=1):
                break
            assert process.poll() is None, (folder / "jobs.log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{dashboard}", environment
    finally:
        left = below(process)
        process.terminate()
        process.wait(20)
        psutil.wait_procs(left, 5)
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        shutil.rmtree(temporary, ignore_errors=True)
