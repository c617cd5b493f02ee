"""An agent that is a program: a process for each episode, which within walls reaches its episode's API alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
from dataclasses import replace
from typing import Any

from headrace import lifelines
from headrace.config.agent import AgentCommand
from headrace.config.errors import ConfigError
from headrace.config.reward import SandboxConfig
from headrace.errors import HeadraceError
from headrace.rewards.tools import find_walls
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.command_streams import command_streams
from headrace.rollout.proxies import past_proxies
from headrace.rollout.sessions import Session
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.sandbox import linux
from headrace.sandbox.commands import module_command
from headrace.sandbox.guardian import guarded
from headrace.sandbox.users import own_users
from headrace.sandbox.walls import Walls

_GIVEN = ("PATH", "LANG", "LC_ALL")
_VARIABLES = {"OPENAI_BASE_URL": "/v1", "OPENAI_API_BASE": "/v1", "ANTHROPIC_BASE_URL": ""}
_KEYS, _MODELS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), ("OPENAI_MODEL", "ANTHROPIC_MODEL")
_ENDING_S = 10.0
_WORDS = 300
"""Characters of its last words in an error."""

logger = logging.getLogger(__name__)


class AgentFailed(HeadraceError):
    """The command did not end well."""


class CommandAgent:
    """Runs the command once an episode."""

    def __init__(self, config: AgentCommand) -> None:
        """Raises ConfigError if there is no such program, or nothing at a path that it is to see."""
        if shutil.which(config.command[0]) is None:
            raise ConfigError(
                f"rollout.agent.command begins with {config.command[0]!r}, and there is no such program; give its path"
            )
        for path in config.read:
            if not os.path.exists(path):
                raise ConfigError(
                    f"rollout.agent.read has {path!r}, and there is no such file or folder; correct it, or leave it "
                    f"out (relative paths begin in {os.getcwd()})"
                )
        self._config = config
        self._walls: Walls | None = None

    async def play(self, episode: AgentEpisode, session: Session, clock: Clock) -> float | None:
        """The reward, if the command tells it. Raises AgentFailed, and ConfigError for walls that do not stand."""
        walls = await self._found(clock)
        folder = str(session.folder() / "work")
        os.mkdir(folder, 0o700)
        with own_users(1) as (user,):
            command, variables = await self._line(walls, folder, session, user)
            environment = self._environment(folder, episode) | variables
            code, printed, errors = await _run(command, folder, environment, _told(episode), clock)
        if code != 0:
            words = " ".join(errors.decode(errors="replace").split())[-_WORDS:]
            raise AgentFailed(f"the agent's command ended with exit status {code}: {words or 'it said nothing'}")
        return _reward(printed) if self._config.reward == "stdout" else None

    async def _found(self, clock: Clock) -> Walls:
        if self._walls is None:
            own = self._config
            read = tuple(dict.fromkeys((os.getcwd(), *own.read)))
            walls = SandboxConfig(tool=own.sandbox, disk_mib=own.disk_mib, read=read)
            self._walls = await find_walls(walls, clock, own_function=True, key="rollout.agent.sandbox")
            if not self._walls.stand:
                logger.warning("rollout.agent runs without a sandbox: it has the machine's network and files")
        return self._walls

    async def _line(self, walls: Walls, folder: str, session: Session, user: int) -> tuple[list[str], dict[str, str]]:
        """The command line, and what says where the API is, unless that is known within alone. `user`: whom root
        becomes."""
        command = list(self._config.command)
        spec: dict[str, Any] = {
            "user": user,
            "memory_bytes": self._config.memory_mib << 20,
            "processes": self._config.processes,
        }
        if not walls.stand:
            root = session.base_url.removesuffix("/v1")
            program = shutil.which(command[0]) or command[0]
            command[0] = os.path.abspath(program)
            variables = {name: root + behind for name, behind in _VARIABLES.items()}
            if not linux.IS_LINUX:  # the limits are Linux's
                return command, variables
            if os.geteuid() == 0:
                os.chown(folder, user, user)
            return module_command("limited", json.dumps(spec), *command, libraries=False), variables
        path = await session.socket()
        spec |= {"socket": path, "variables": _VARIABLES}
        inner = module_command("forward", json.dumps(spec), *command, libraries=False)
        shown = replace(walls, shows=(*walls.shows, path))
        return shown.around(inner, folder, stays=True, loopback=True), {}

    def _environment(self, folder: str, episode: AgentEpisode) -> dict[str, str]:
        given = {name: os.environ[name] for name in (*_GIVEN, *self._config.environment) if name in os.environ}
        named = dict.fromkeys(_KEYS, episode.api_key) | dict.fromkeys(_MODELS, episode.model)
        return given | past_proxies(given) | named | {"HOME": folder, "TMPDIR": folder}


def _told(episode: AgentEpisode) -> bytes:
    """What it reads: JSON, one line."""
    told = {name: getattr(episode, name) for name in ("row", "prompt", "tools", "model", "name")}
    return json.dumps(told).encode() + b"\n"


async def _run(
    command: list[str], folder: str, environment: dict[str, str], given: bytes, clock: Clock
) -> tuple[int, bytes, bytes]:
    """The exit status, and the last bytes of both streams. Nothing that it started goes on then."""
    line, held = socket.socketpair()
    lifelines.hold(line)
    with line, command_streams() as streams:
        with held:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, line=held.fileno(), folder=folder, passes=()),
                pass_fds=[held.fileno()],
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                env=environment,
                start_new_session=True,
            )
        streams.hand_over()
        try:
            printed, errors = await streams.talk(process, given, clock)
            return await process.wait(), printed, errors
        finally:
            line.close()
            await _ended(process, clock)


async def _ended(process: asyncio.subprocess.Process, clock: Clock) -> None:
    """The guardian, whose line is closed, once it has ended all that was started."""
    try:
        with contextlib.suppress(WaitTimeout):
            await clock.wait_for(process.wait(), _ENDING_S, "an agent's command to be ended")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _reward(printed: bytes) -> Any:
    lines = printed.decode(errors="replace").strip().split("\n")
    try:
        return float(lines[-1])
    except ValueError:
        raise AgentFailed(
            f"the last line that the agent printed is {lines[-1][:80]!r}, and not its reward; print a number there, or "
            "set rollout.agent.reward to functions"
        ) from None
