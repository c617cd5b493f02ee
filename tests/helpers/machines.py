"""Two machines of one host: each has its own network, with its own loopback, and its own shared memory; a cable joins
them. They share the file system. What is run on one is begun by `Machine.enter`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from shutil import which

import psutil

_OUTSIDE = "mount -t tmpfs -o size=2g none /dev/shm && ip link set lo up && echo up && exec sleep 3600"
_CABLE = """
ip link add here type veth peer name there && ip link set there netns {other}
ip addr add {one} dev here && ip link set here up
nsenter -n -t {other} sh -c 'ip addr add {two} dev there && ip link set there up'
"""


@dataclass(frozen=True, slots=True)
class Machine:
    pid: int
    """Of a process of it."""
    address: str

    @property
    def enter(self) -> list[str]:
        """What a command line begins with that runs on it."""
        return ["nsenter", "--preserve-credentials", "-U", "-m", "-n", "-t", str(self.pid)]


def can_be_two() -> bool:
    """Whether this system lets a process make them."""
    if not sys.platform.startswith("linux") or not all(map(which, ("unshare", "nsenter", "ip"))):
        return False
    tried = ["unshare", "-rmn", "sh", "-c", "ip link add here type veth peer name there"]
    return subprocess.run(tried, capture_output=True).returncode == 0


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    first = _begun(["unshare", "-rmn"])
    try:
        one = Machine(first.pid, "10.77.0.1")
        second = _begun([*one.enter, "unshare", "-mn"])
        try:
            two = Machine(second.pid, "10.77.0.2")
            cable = _CABLE.format(other=two.pid, one=f"{one.address}/24", two=f"{two.address}/24")
            subprocess.run([*one.enter, "sh", "-ec", cable], check=True)
            yield one, two
        finally:
            _end(second)
    finally:
        _end(first)


def _begun(line: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen([*line, "sh", "-c", _OUTSIDE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    """With all that is still on it."""
    spaces = os.readlink(f"/proc/{process.pid}/ns/net")
    for each in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if each.pid != process.pid and os.readlink(f"/proc/{each.pid}/ns/net") == spaces:
                each.kill()
    process.kill()
    process.wait(20)
