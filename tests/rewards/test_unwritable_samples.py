"""A sample with a value that JSON cannot hold fails alone, with a reason, and what scores goes on."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from reward_servers_running import opened, serving

from headrace.rewards.gathering import Gathering
from headrace.rewards.outcome import RewardOutcome, Verdict
from headrace.rewards.reward_pool import RewardPool
from headrace.rewards.unwritable import unwritable

IN_TIME_S = 5.0
"""Far less than a call may take."""


async def in_time(outcome: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(outcome, IN_TIME_S)


async def scored(pool: RewardPool, first: Any) -> list[RewardOutcome]:
    """Of a sample whose row has `first`, of one beside it, and of one that comes later."""
    together = asyncio.gather(pool.score("a", {"tags": [first]}, "p"), pool.score("bb", {}, "p"))
    outcomes = await in_time(together)
    return [*outcomes, await in_time(pool.score("ccc", {}, "p"))]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1}, "row['tags'][0] is {1} (set)"),
        ({(1, 2): 3}, "row['tags'][0] has the name (1, 2) (tuple)"),
        (b"x", "row['tags'][0] is b'x' (bytes)"),
    ],
)
@pytest.mark.parametrize("batch", [1, 8])
def test_of_a_remote_reward(batch: int, value: Any, said: str) -> None:
    asked: list[int] = []

    async def judge(request: web.Request) -> web.Response:
        samples = (await request.json())["samples"]
        asked.append(len(samples))
        return web.json_response({"rewards": [len(sample["response"]) for sample in samples]})

    async def run() -> list[RewardOutcome]:
        async with serving(judge) as url:
            remote = {"url": url, "connections": 1, "batch": batch, "timeout_s": 30, "retries": 0}
            async with opened(function="remote", remote=remote) as pool:
                return await scored(pool, value)

    bad, *good = asyncio.run(run())
    assert bad == RewardOutcome(None, f"reward_remote: the sample cannot be written as JSON: {said}")
    assert good == [RewardOutcome(2.0), RewardOutcome(3.0)]
    assert asked == [1, 1]


MINE = """
    import os
    def f(response, row):
        if row.get("die"):
            os._exit(3)
        return float(len(response))
    def g(responses, rows):
        return [float(len(response)) for response in responses]
    def rank(responses, row):
        return [1.0] * len(responses)
"""


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("own", [{"function": "f"}, {"function": "g", "style": "batched"}])
def test_of_a_function_in_processes(tmp_path: Path, own: dict[str, str], trusted: bool) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    config = {**own, "function": f"{tmp_path}/mine.py:{own['function']}", "workers": 1, "trusted": trusted}

    async def run() -> tuple[list[RewardOutcome], float]:
        async with opened(**config, timeout_s=40.0) as pool:
            await pool.score("", {}, "p")
            began = time.monotonic()
            return await scored(pool, {1}), time.monotonic() - began

    (bad, *good), took = asyncio.run(run())
    assert bad == RewardOutcome(
        None, "reward_raised: the sample cannot be written as JSON: row['tags'][0] is {1} (set)"
    )
    assert good == [RewardOutcome(2.0), RewardOutcome(3.0)]
    assert took < IN_TIME_S


def test_behind_a_call_that_ends_its_process(tmp_path: Path) -> None:
    """The process that takes the place is given what was behind that call, and starts all the same."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))

    async def run() -> list[RewardOutcome]:
        async with opened(function=f"{tmp_path}/mine.py:f", workers=1, trusted=True) as pool:
            for _ in range(3):  # quick ones: then several calls are with the process at once
                await pool.score("a", {}, "p")
            rows: list[dict[str, Any]] = [{"die": True}, {"tags": {1}}, {}, {"tags": {2}}, {}]
            return await asyncio.gather(*(pool.score("a", row, "p") for row in rows))

    died, *others = asyncio.run(run())
    assert (died.failure or "").startswith("reward_died: the process ended with exit status 3")
    assert [outcome.value for outcome in others] == [None, 1.0, None, 1.0]


def test_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))

    async def run() -> list[list[RewardOutcome]]:
        mine = f"{tmp_path}/mine.py"
        async with opened(function=f"{mine}:f", group=f"{mine}:rank", workers=1, trusted=True) as pool:
            rows: list[dict[str, Any]] = [{"tags": {1}}, {"tags": 1}]
            return [await in_time(pool.score_group(["a", "b"], row, "p", [0.0, 1.0])) for row in rows]

    bad, good = asyncio.run(run())
    failure = "reward_raised: the sample cannot be written as JSON: row['tags'] is {1} (set)"
    assert bad == [RewardOutcome(None, failure)] * 2
    assert good == [RewardOutcome(1.0)] * 2


def gathered(answer: Callable[[Sequence[list[Any]]], Awaitable[Sequence[Verdict]]], calls: int) -> list[Any]:
    """What each of so many calls got, that went together, and then one more."""

    async def run() -> list[Any]:
        gathering = Gathering(answer, at_once=1, most=8, what="a test")
        gathering.start()
        try:
            first = await in_time(asyncio.gather(*(gathering.judge([place]) for place in range(calls))))
            return [*first, await in_time(gathering.judge([9]))]
        finally:
            await gathering.close()

    return asyncio.run(run())


def test_what_an_answer_raises_fails_its_samples_and_the_next_is_asked() -> None:
    async def answer(batch: Sequence[list[Any]]) -> list[Verdict]:
        if len(batch) > 1:
            raise KeyError("rewards")
        return [(1.0, None)]

    *failed, last = gathered(answer, 2)
    words = "reward_raised: KeyError: 'rewards' (test_unwritable_samples.py, line"
    assert [(value, why.startswith(words)) for value, why in failed] == [(None, True)] * 2
    assert last == (1.0, None)


def test_an_answer_of_another_length_fails_its_samples() -> None:
    async def answer(batch: Sequence[list[Any]]) -> list[Verdict]:
        return [(1.0, None)]

    *failed, last = gathered(answer, 2)
    assert [value for value, _ in failed] == [None, None]
    assert last == (1.0, None)


def test_who_is_cancelled_while_it_is_answered_cancels_what_was_asked() -> None:
    async def answer(batch: Sequence[list[Any]]) -> list[Verdict]:
        await asyncio.get_running_loop().create_future()
        return []

    async def run() -> bool:
        gathering = Gathering(answer, at_once=1, most=8, what="a test")
        gathering.start()
        asked = asyncio.create_task(gathering.judge([0]))
        await asyncio.sleep(0.01)
        await gathering.close()
        with suppress(asyncio.CancelledError):
            await asked
        return asked.cancelled()

    assert asyncio.run(run())


def around(value: Any) -> Any:
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"row": {"a": [1, (2, {3})]}}, "row['a'][1][1] is {3} (set)"),
        ({"row": {"a": 10**5000}}, "row['a'] is a number of more digits than can be written"),
        ({"row": {"a" * 500: object}}, "(type)"),
        ({"row": around({})}, "Circular reference detected"),
    ],
)
def test_where_the_value_is(value: dict[str, Any], said: str) -> None:
    assert said in unwritable(value, ValueError("Circular reference detected"))
    assert len(unwritable(value, ValueError(""))) < 400
