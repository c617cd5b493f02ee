"""Finds the tool that walls code off here, by trying."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence

from headrace.config.errors import ConfigError
from headrace.config.reward import SandboxConfig, SandboxTool
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.sandbox.places import own_places
from headrace.sandbox.walls import Walls, python_files

AUTO: Sequence[SandboxTool] = ("namespaces", "nsjail", "bubblewrap")
"""The last one limits no number of files, whose names take memory of the kernel's."""
_TRY_S = 10.0
_MIB = 2**20


async def find_walls(
    config: SandboxConfig,
    clock: Clock,
    *,
    own_function: bool,
    functions: Sequence[str] = (),
    key: str = "reward.sandbox.tool",
) -> Walls:
    """For the user's own `functions`, which see files, or for programs of the model, which see Python's alone. `key`:
    where the config names the tool.

    Raises ConfigError if `sandbox.tool` names one that does not work here, or `sandbox.read` what is not there.
    """
    for path in config.read:
        if not os.path.exists(path):
            raise ConfigError(
                f"reward.sandbox.read has {path!r}, and there is no such file or folder; correct it, or leave it out "
                f"(relative paths begin in {os.getcwd()})"
            )
    network = config.network and own_function
    hides, shows = own_places(functions, config.read, network=network) if own_function else ((), ())
    tools = AUTO if config.tool == "auto" else (config.tool,)
    for tool in tools:
        walls = Walls(
            tool=tool,
            disk_bytes=config.disk_mib * _MIB,
            network=network,
            reads=None if own_function else python_files(),
            hides=hides,
            shows=shows,
        )
        fault = await _fault_of(walls, clock) if walls.stand else None
        if fault is None:
            return walls
        if config.tool != "auto":
            raise ConfigError(f"{key} is {tool}, which does not work here: {fault}; mend that, or let auto choose")
    return Walls(tool="none", disk_bytes=config.disk_mib * _MIB, network=True, reads=None)


_stood: set[Walls] = set()
"""Walls within which something ran: a run looks before it is planned and when it begins."""


async def _fault_of(walls: Walls, clock: Clock) -> str | None:
    """Why nothing runs within `walls`; None if it does, or did."""
    if walls in _stood:
        return None
    fault = await run_within(walls, [sys.executable, "-I", "-S", "-c", "open('made', 'w').write('it')"], clock)
    if fault is None:
        _stood.add(walls)
    return fault


async def run_within(walls: Walls, command: list[str], clock: Clock) -> str | None:
    """What went wrong with `command` within `walls`; None if it ended well."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        try:
            process = await asyncio.create_subprocess_exec(
                *walls.around(command, folder), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, start_new_session=True
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
