"""What the sandbox holds on this machine, found by trying."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.config.errors import ConfigError
from headrace.config.reward import SandboxConfig
from headrace.rewards.tools import AUTO, find_walls, run_within
from headrace.runtime.protocol import Clock
from headrace.sandbox import linux
from headrace.sandbox.commands import module_command
from headrace.sandbox.tree import memory_of, threads_of
from headrace.sandbox.walls import Walls


@dataclass(frozen=True, slots=True)
class Promises:
    tool: str
    """That `auto` takes."""
    faults: tuple[str, ...]
    """Why other tools do not work."""
    refuses: bool
    """Memory that belongs to no process, namespaces and a change of priority, to programs of the model."""
    watches: bool
    """The memory of all processes of a sample together."""
    tells_time: bool
    """Own time from waiting for a processor."""

    def words(self) -> Iterator[tuple[str, str]]:
        """(what, what is promised), a line each."""
        if self.tool == "none":
            yield "sandbox", f"none works: what is judged reads files and has network ({'; '.join(self.faults)})"
        else:
            yield (
                "sandbox",
                (
                    f"{self.tool}: programs of the model see Python's files alone, your rewards all but those below "
                    "/run, /tmp and /dev; neither has network, or sees other processes"
                ),
            )
        if not self.watches:
            memory = "limited for each process of a sample, but not for all together"
        elif not self.refuses:
            memory = "limited for all processes of a sample together; memory of no process (memfd_create) is not"
        else:
            memory = "limited for all processes of a sample together; memory of no process is refused (seccomp)"
        yield "sandbox:memory", memory
        if self.tool != "none" and not self.refuses:
            yield "sandbox:agents", "those that are programs reach Unix sockets of the files that they see (no seccomp)"
        if self.tool == "bubblewrap":
            yield "sandbox:files", "limited in size together, but not in number"
        slow = "is told from a slow program" if self.tells_time else "is not told from a slow program"
        yield "sandbox:time", f"a slow host {slow} (/proc/PID/schedstat)"


async def find_promises(clock: Clock) -> Promises:
    found, faults = None, []
    for tool in AUTO:
        if found is None:
            try:
                found = await find_walls(SandboxConfig(tool=tool), clock, own_function=False)
            except ConfigError as error:
                faults.append(f"{tool}: {str(error).partition('not work here: ')[2].rpartition('; mend')[0]}")
    walls = found or Walls(tool="none", disk_bytes=1 << 20, network=True, reads=None)
    own = os.getpid()
    return Promises(
        tool=walls.tool,
        faults=tuple(faults),
        refuses=await run_within(walls, module_command("probe"), clock) is None,
        watches=linux.IS_LINUX and memory_of({own: 0})[0] > 0,
        tells_time=linux.IS_LINUX and bool(threads_of([own])),
    )
