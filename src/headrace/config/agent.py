"""Agents that are no function: a command, and one that runs by itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headrace.config.base import Section
from headrace.config.reward import SandboxTool
from headrace.config.values.hosts import is_loopback


class AgentCommand(Section):
    """A program that plays one episode. It finds the API by its environment, and the row on its standard input."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program with its arguments, as `[python, agent.py]`."""
    reward: Literal["functions", "stdout"] = "functions"
    """`functions`: the run's reward functions judge. `stdout`: the last line that it prints is the reward."""
    sandbox: SandboxTool = "auto"
    """What walls it off from the network, other processes, and files that it could write (see `reward.sandbox.tool`);
    `none`: nothing does, but `memory_mib` and `processes` hold all the same."""
    disk_mib: int = Field(default=256, ge=1)
    """Size of the folder that it may write, in memory; its HOME and TMPDIR."""
    memory_mib: int = Field(default=4096, ge=64)
    """Memory of all its processes together."""
    processes: int = Field(default=256, ge=1)
    """Processes and threads that it may start."""
    read: tuple[str, ...] = ()
    """Paths below `/run`, `/var/run`, `/tmp` and `/dev` that it sees, beside the working folder and Python; the rest of
    these folders is hidden."""
    environment: tuple[str, ...] = ()
    """Names of environment variables that it is given, beside PATH, LANG and what says where the API is."""


class OutsideAgent(Section):
    """Agents that run by themselves, here or elsewhere. They ask the run for tasks over HTTP: each is an episode."""

    outside: Literal[True]
    """Says that this is what is meant: `true`."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """The address that the run listens on. Beyond loopback it needs `token_env`."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: one that is free. `gateway.json` in the run's folder tells it. Rollout workers (`rollout.workers`), if any
    play, listen on the next ones."""
    token_env: str | None = Field(default=None, min_length=1)
    """The environment variable that holds the token which agents send to be given tasks; none is asked for unless
    given."""

    @model_validator(mode="before")
    @classmethod
    def _is_no_command(cls, given: Any) -> Any:
        if isinstance(given, dict) and "command" in given:
            raise ValueError("command and outside are given: one of them plays; leave one out")
        return given

    @model_validator(mode="after")
    def _others_need_a_token(self) -> OutsideAgent:
        if self.token_env is None and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host!r}, which others can reach, and no token is asked for; set token_env, or use "
                "127.0.0.1"
            )
        return self


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "<function>"
    is_outside = isinstance(value, OutsideAgent) or (isinstance(value, dict) and "outside" in value)
    return "<outside>" if is_outside else "<command>"


AgentConfig = Annotated[
    Annotated[str, Tag("<function>")]
    | Annotated[AgentCommand, Tag("<command>")]
    | Annotated[OutsideAgent, Tag("<outside>")],
    Discriminator(_kind_of),
]
"""`path.py:function`, a program, or whoever asks."""
