"""The inference servers that there are, by `engine.kind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.engines.servers import sglang_command, vllm_command
from headrace.engines.servers.dialect import Dialect
from headrace.engines.servers.http import ServerHttp
from headrace.engines.servers.launch import ServerLaunch
from headrace.engines.servers.sglang import SglangDialect
from headrace.engines.servers.sglang_told import ADMIN_ROUTES
from headrace.engines.servers.vllm import VllmDialect
from headrace.engines.servers.weight_sender import WeightSender
from headrace.runtime.protocol import Services


@dataclass(frozen=True, slots=True)
class ServerKind:
    command: Callable[[ServerLaunch, int], list[str]]
    """By which it is launched at a port. Raises ConfigError for options that are not the user's to give."""
    environment: Callable[[ServerLaunch, Mapping[str, str], str], dict[str, str]]
    """For it, from that of whoever launches it, with a folder of its own, which ends with it."""
    refusal: Callable[[ServerLaunch, str], str | None]
    """What is wrong with how it was launched, where a line that it printed says that."""
    dialect: Callable[[ServerHttp, int, Services, WeightSender | None], Dialect]
    """`int`: ids in the vocabulary."""
    title: str
    """How the names of its processes begin without which it does not serve."""
    admin_routes: frozenset[str] = frozenset()
    """Those that may have a key of their own, `engine.admin_token_env`."""


KINDS: Mapping[str, ServerKind] = {
    "vllm": ServerKind(
        vllm_command.command,
        vllm_command.environment,
        vllm_command.refusal,
        lambda http, vocab_size, services, sender: VllmDialect(http, vocab_size, sender),
        "VLLM::",
    ),
    "sglang": ServerKind(
        sglang_command.command,
        sglang_command.environment,
        sglang_command.refusal,
        SglangDialect,
        "sglang::",
        ADMIN_ROUTES,
    ),
}
