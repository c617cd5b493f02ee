"""Finds the tool that walls code off here, by trying."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE

from headrace.config.data import SandboxConfig
from headrace.config.errors import ConfigError
from headrace.rollout.sandbox.walls import Walls, python_files
from headrace.runtime.protocol import Clock, WaitTimeout

_TRY_S = 10.0
_MIB = 2**20


async def find_walls(config: SandboxConfig, clock: Clock, *, own_function: bool) -> Walls:
    """For the user's own function, which sees all files, or for programs of the model, which see Python's alone.

    Raises ConfigError if `sandbox.tool` names one that does not work here.
    """
    tools = ("bubblewrap", "nsjail", "namespaces") if config.tool == "auto" else (config.tool,)
    for tool in tools:
        walls = Walls(
            tool=tool,
            disk_bytes=config.disk_mib * _MIB,
            network=config.network and own_function,
            reads=None if own_function else python_files(),
        )
        fault = await _fault_of(walls, clock) if walls.stand else None
        if fault is None:
            return walls
        if config.tool != "auto":
            raise ConfigError(
                f"reward.sandbox.tool is {tool}, which does not work here: {fault}; mend that, or let auto choose"
            )
    return Walls(tool="none", disk_bytes=config.disk_mib * _MIB, network=True, reads=None)


async def _fault_of(walls: Walls, clock: Clock) -> str | None:
    """Why nothing runs within `walls`; None if it does."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        try:
            command = walls.around([sys.executable, "-I", "-S", "-c", "open('made', 'w').write('it')"], folder)
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, start_new_session=True
            )
        except OSError as error:
            return str(error)
        try:
            _, errors = await clock.wait_for(process.communicate(), _TRY_S, "a sandbox to be tried")
        except WaitTimeout as error:
            process.kill()
            await process.wait()
            return str(error)
        words = " ".join(errors.decode(errors="replace").split())
        return None if process.returncode == 0 else words or f"it ended with exit status {process.returncode}"
