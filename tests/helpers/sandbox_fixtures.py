"""Fixtures of the tests of the sandbox."""

from __future__ import annotations

import asyncio

import pytest

from headrace.config import ConfigError
from headrace.config.reward import SandboxConfig
from headrace.rewards.tools import find_walls
from headrace.runtime.inline import SystemClock


@pytest.fixture(params=["bubblewrap", "nsjail", "namespaces", "none"])
def tool(request: pytest.FixtureRequest) -> str:
    """Each tool that works here."""
    name: str = request.param
    try:
        asyncio.run(find_walls(SandboxConfig(tool=name), SystemClock(), own_function=False))  # type: ignore[arg-type]
    except ConfigError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may be so slow that it is to blame for everything; these tests are of what programs do."""
    for module in ("headrace.config.reward", "headrace.rewards.reward_pool"):
        monkeypatch.setattr(f"{module}.CODE_PATIENCE", 100)
