"""Rewards that no file defines: sent by the pipe to every process that scores, and to nothing else."""

import asyncio
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.config import ConfigError
from headrace.config.reward import RewardConfig
from headrace.rewards.processes.pickled import packed, unpacked
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock

SPEC = "<memory>:score"


def make(value: Any) -> Any:
    def score(response: str, row: dict[str, Any]) -> float:
        return float(os.getppid()) + len([value]) - 1

    return score


def test_a_process_that_takes_another_s_place_is_given_it_again() -> None:
    """The parent of a call is the process that was started; without walls its number is the real one."""
    sandbox = {"tool": "none"}
    config = RewardConfig.model_validate({"function": SPEC, "workers": 1, "timeout_s": 20, "sandbox": sandbox})

    async def scores() -> list[float | None]:
        pool = RewardPool(config, clock=SystemClock(), given={SPEC: make(3)})
        await pool.start()
        try:
            first = (await pool.score("a", {}, "")).value
            assert first is not None
            os.kill(int(first), signal.SIGKILL)
            others = [(await pool.score("a", {}, "")).value for _ in range(2)]
            return [first, others[-1]]  # the call at hand is lost with its process
        finally:
            await pool.close()

    first, second = asyncio.run(scores())
    assert second is not None
    assert first != second


def test_only_what_is_in_no_file_is_packed_and_comes_out_as_it_was() -> None:
    given = {SPEC: make(1), "mine.py:score": make(2)}
    assert packed(given, ["mine.py:score", "exact"]) is None
    message = packed(given, [SPEC, "mine.py:score"])
    assert message is not None
    assert list(message["objects"]) == [SPEC]
    before = list(sys.path)
    assert unpacked(message)[SPEC]("a", {}) == os.getppid()
    assert sys.path == before


def test_what_holds_too_much_or_cannot_be_packed_or_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.rewards.processes.pickled._MOST_MIB", 1)
    with pytest.raises(ValueError, match=r"the reward score is 2 MiB with all that it holds, and 1 MiB is the most"):
        packed({SPEC: make(bytes(2 << 20))}, [SPEC])
    with pytest.raises(ValueError, match=r"the reward score cannot be sent to another process: TypeError"):
        packed({SPEC: make(threading.Lock())}, [SPEC])
    with pytest.raises(ValueError, match=r"the reward score cannot be made in another process: .*must be importable"):
        unpacked({"folders": [], "objects": {SPEC: "Y29zCm5vd2hlcmUKLg=="}})


def test_a_given_reward_of_a_wrong_signature_is_told_by_the_process() -> None:
    async def start() -> None:
        config = RewardConfig.model_validate({"function": SPEC, "workers": 1})
        pool = RewardPool(config, clock=SystemClock(), given={SPEC: lambda response: 1.0})
        try:
            await pool.start()
        finally:
            await pool.close()

    with pytest.raises(ConfigError, match=r"which has the signature \(response\), but is called as \(response, row\)"):
        asyncio.run(start())


def test_code_is_deserialised_in_one_place_alone() -> None:
    """Invariant 8."""
    root = Path(headrace.__file__).parent
    loads = re.compile(
        r"\b(?:import|from) (?:pickle|marshal|dill|joblib|shelve)\b|cloudpickle\.|torch\.load\(|(?<![.\w])eval\("
    )
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if loads.search(line) and not line.lstrip().startswith(("#", '"""'))
    }
    assert found == {"rewards/processes/pickled.py"}
