"""Temporary files of a user's reward in the sandbox: libraries ask for a place for them when they are imported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.config.reward import RewardConfig, SandboxConfig
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock

REWARD = """
import os, tempfile

with tempfile.NamedTemporaryFile() as file:  # as torch finds out, when it is imported, where it may write
    file.write(b"x")
    file.flush()
    MADE = tempfile.gettempdir()
LEFT = tempfile.mkdtemp()

def reward(response, row):
    with tempfile.NamedTemporaryFile(dir=os.getcwd()) as file:
        file.write(response.encode())
        file.flush()
        again = open(file.name).read()
    found = {"left": os.path.exists(LEFT), "named": "TMPDIR" in os.environ}
    return {"score": float(again == response), **{name: float(one) for name, one in found.items()}}
"""


@pytest.mark.parametrize("tool", ["none", "auto"])
def test_they_can_be_made_while_it_loads_and_while_it_scores_and_are_gone_between(tmp_path: Path, tool: str) -> None:
    (tmp_path / "mine.py").write_text(REWARD)

    async def play() -> list[RewardOutcome]:
        config = RewardConfig(
            function=f"{tmp_path}/mine.py:reward",
            workers=1,
            sandbox=SandboxConfig(tool=tool),  # type: ignore[arg-type]
        )
        pool = RewardPool(config, clock=SystemClock())
        await pool.start()
        try:
            return [await pool.score(text, {}, "") for text in ("four", "five")]
        finally:
            await pool.close()

    for outcome in asyncio.run(play()):
        assert outcome.failure is None
        assert (outcome.value, outcome.terms) == (1.0, {"left": 0.0, "named": 0.0})
