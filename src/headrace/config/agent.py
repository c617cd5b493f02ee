"""An agent that is a command."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from headrace.config.base import Section
from headrace.config.reward import SandboxTool


class AgentCommand(Section):
    """A program that plays one episode. It finds the API by its environment, and the row on its standard input."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program with its arguments, as `[python, agent.py]`."""
    reward: Literal["functions", "stdout"] = "functions"
    """`functions`: the run's reward functions judge. `stdout`: the last line that it prints is the reward."""
    sandbox: SandboxTool = "auto"
    """What walls it off from the network, other processes, and files that it could write (see `reward.sandbox.tool`);
    `none`: nothing does."""
    disk_mib: int = Field(default=256, ge=1)
    """Size of the folder that it may write, in memory; its HOME and TMPDIR."""
    read: tuple[str, ...] = ()
    """Paths below `/run`, `/var/run`, `/tmp` and `/dev` that it sees, beside the working folder and Python; the rest of
    these folders is hidden."""
    environment: tuple[str, ...] = ()
    """Names of environment variables that it is given, beside PATH, LANG and what says where the API is."""


AgentConfig = Annotated[
    Annotated[str, Tag("<function>")] | Annotated[AgentCommand, Tag("<command>")],
    Discriminator(
        lambda value: "<function>" if isinstance(value, str) else "<command>",
    ),
]
"""`path.py:function`, or a program."""
