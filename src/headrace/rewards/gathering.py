"""Calls to a reward that go together: while all that answer are busy, samples gather."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.experience.failures import FailureKind, describe
from headrace.plugins.raised import describe_exception
from headrace.rewards.outcome import Verdict, is_reward, is_scored

Ask = Callable[[list[Any]], Awaitable[Verdict]]
Answer = Callable[[Sequence[list[Any]]], Awaitable[Sequence[Verdict]]]
"""Given the arguments of several calls; a verdict for each."""


@dataclass(eq=False, frozen=True, slots=True)
class _Question:
    arguments: list[Any]
    verdict: asyncio.Future[Verdict]


class Gathering:
    """First come, first served: `at_once` batches of at most `most` calls are answered at the same time."""

    def __init__(self, answer: Answer, *, at_once: int, most: int, what: str) -> None:
        """`what` is asked, in words."""
        self._answer = answer
        self._at_once = at_once
        self._most = most
        self._what = what
        self._waiting: deque[_Question] = deque()
        self._asked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._serve(), name=self._what) for _ in range(self._at_once)]

    async def judge(self, arguments: list[Any]) -> Verdict:
        """The verdict on one sample."""
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Question(arguments, verdict))
        self._asked.set()
        return await verdict

    async def close(self) -> None:
        """Cancel every call. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for question in self._waiting:
            question.verdict.cancel()
        self._waiting.clear()

    async def _serve(self) -> None:
        while True:
            while not self._waiting:
                self._asked.clear()
                await self._asked.wait()
            await asyncio.sleep(0)  # those who ask in the same turn of the loop go along
            batch = self._take()
            if batch:
                await self._settle(batch)

    def _take(self) -> list[_Question]:
        batch: list[_Question] = []
        while self._waiting and len(batch) < self._most:
            question = self._waiting.popleft()
            if not question.verdict.done():
                batch.append(question)
        return batch

    async def _settle(self, batch: list[_Question]) -> None:
        """Whatever goes wrong fails these samples: those that ask next are served."""
        try:
            verdicts = await self._answer([question.arguments for question in batch])
            settled = list(zip(batch, verdicts, strict=True))
        except Exception as error:
            failed: Verdict = None, describe(FailureKind.REWARD_RAISED, describe_exception(error))
            settled = [(question, failed) for question in batch]
        except BaseException:
            for question in batch:
                question.verdict.cancel()
            raise
        for question, verdict in settled:
            if not question.verdict.done():
                question.verdict.set_result(verdict)


async def judged_together(ask: Ask, batch: Sequence[list[Any]]) -> list[Verdict]:
    """What `ask`, given the arguments of all calls as one call, says of each. Where it fails, each is asked about
    alone, so that a sample fails by itself."""
    value, failure = await ask(list(batch))
    if isinstance(value, list) and len(value) == len(batch) and all(is_reward(one) or is_scored(one) for one in value):
        return [(one, None) for one in value]
    if len(batch) == 1:
        return [(None, failure or describe(FailureKind.REWARD_NAN, "the rewards are no list of finite numbers"))]
    alone = await asyncio.gather(*(judged_together(ask, [each]) for each in batch))
    return [verdict for (verdict,) in alone]
