"""The reward `remote`: batches of samples are posted to a server, which answers with a reward for each.

The request is `{"samples": [{"response", "row", "prompt", "messages"}, ...]}`, the answer `{"rewards": [...]}` of the
same length: a finite number, or a text that says why there is none.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import aiohttp

from headrace.config.errors import ConfigError
from headrace.config.reward import RemoteRewardConfig
from headrace.experience.failures import FailureKind, describe
from headrace.experience.text.conversation import conversation
from headrace.rewards.outcome import FailedReward, NotARewardError, Verdict, as_scored
from headrace.runtime.protocol import Clock, WaitTimeout

_MOST_BYTES = 1 << 24
_TOO_MANY, _SERVER_FAULT = 429, 500


@dataclass(eq=False, frozen=True, slots=True)
class _Question:
    sample: dict[str, Any]
    verdict: asyncio.Future[Verdict]


class _Passing(Exception):
    """A fault that may be gone when it is tried again."""


class RemoteReward:
    """While all connections are busy samples gather, and then go together."""

    def __init__(self, config: RemoteRewardConfig, clock: Clock) -> None:
        if config.url is None:
            raise ConfigError("reward.function is 'remote', which needs reward.remote.url")
        self._url = config.url
        self._config = config
        self._clock = clock
        self._waiting: deque[_Question] = deque()
        self._asked = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises ConfigError if the token is to come from an environment variable that is not set."""
        headers = {}
        if self._config.token_env is not None:
            token = os.environ.get(self._config.token_env)
            if not token:
                raise ConfigError(
                    f"reward.remote.token_env is {self._config.token_env!r}, but the environment has no such variable; "
                    "set it, or remove the key"
                )
            headers["Authorization"] = f"Bearer {token}"
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None))
        self._tasks = [
            asyncio.create_task(self._serve(self._session), name="remote reward")
            for _ in range(self._config.connections)
        ]

    async def judge(self, arguments: list[Any]) -> Verdict:
        """The verdict on [response, row, prompt, messages]."""
        response, row, prompt, messages, *_ = arguments
        sample = {"response": response, "row": row, "prompt": prompt}
        sample["messages"] = conversation(prompt, response, messages)
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Question(sample, verdict))
        self._asked.set()
        return await verdict

    async def close(self) -> None:
        """Hang up, and cancel every call. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for question in self._waiting:
            question.verdict.cancel()
        self._waiting.clear()
        if self._session is not None:
            await self._session.close()

    async def _serve(self, session: aiohttp.ClientSession) -> None:
        while True:
            while not self._waiting:
                self._asked.clear()
                await self._asked.wait()
            await asyncio.sleep(0)  # those who ask in the same turn of the loop go along
            batch = self._take()
            if batch:
                await self._answer(session, batch)

    def _take(self) -> list[_Question]:
        batch: list[_Question] = []
        while self._waiting and len(batch) < self._config.batch:
            question = self._waiting.popleft()
            if not question.verdict.done():
                batch.append(question)
        return batch

    async def _answer(self, session: aiohttp.ClientSession, batch: list[_Question]) -> None:
        try:
            rewards = await self._persist(session, [question.sample for question in batch])
            verdicts = [_verdict(reward) for reward in rewards]
        except FailedReward as error:
            verdicts = [(None, describe(error.kind, str(error)))] * len(batch)
        except BaseException:
            for question in batch:
                question.verdict.cancel()
            raise
        for question, verdict in zip(batch, verdicts, strict=True):
            if not question.verdict.done():
                question.verdict.set_result(verdict)

    async def _persist(self, session: aiohttp.ClientSession, samples: list[dict[str, Any]]) -> list[Any]:
        """The rewards of `samples`. Raises FailedReward once no try is left."""
        body = json.dumps({"samples": samples}).encode()
        tries = self._config.retries + 1
        for number in range(tries):
            if number:
                await self._clock.sleep(self._config.backoff_s * 2 ** (number - 1))
            try:
                return await self._clock.wait_for(
                    self._post(session, body, len(samples)), self._config.timeout_s, f"an answer of {self._url}"
                )
            except WaitTimeout as error:
                kind, words = FailureKind.REWARD_TIMEOUT, str(error)
            except (_Passing, aiohttp.ClientError, OSError) as error:
                kind, words = FailureKind.REWARD_REMOTE, f"{self._url}: {str(error) or type(error).__name__}"
        raise FailedReward(kind, f"{words} (tried {tries} times)")

    async def _post(self, session: aiohttp.ClientSession, body: bytes, count: int) -> list[Any]:
        headers = {"Content-Type": "application/json"}
        # A redirect would carry the token and the samples elsewhere.
        async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
            if answer.status == _TOO_MANY or answer.status >= _SERVER_FAULT:
                raise _Passing(f"status {answer.status}")
            data = await answer.content.read(_MOST_BYTES + 1) if answer.status == 200 else b""
            while answer.status == 200 and len(data) <= _MOST_BYTES and not answer.content.at_eof():
                data += await answer.content.read(_MOST_BYTES + 1 - len(data))
        if answer.status != 200:
            raise FailedReward(FailureKind.REWARD_REMOTE, f"{self._url} answered with status {answer.status}")
        return _rewards(data, count, self._url)


def _rewards(data: bytes, count: int, url: str) -> list[Any]:
    """The list of `count` rewards in an answer. Raises FailedReward."""
    if len(data) > _MOST_BYTES:
        raise FailedReward(FailureKind.REWARD_REMOTE, f"{url} answered with more than {_MOST_BYTES} bytes")
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FailedReward(FailureKind.REWARD_REMOTE, f"{url} answered with what is not JSON: {data[:40]!r}") from error
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    if not isinstance(rewards, list) or len(rewards) != count:
        raise FailedReward(FailureKind.REWARD_REMOTE, f"{url} gave no list of {count} rewards: {data[:80]!r}")
    return rewards


def _verdict(reward: Any) -> Verdict:
    if isinstance(reward, str):
        return None, describe(FailureKind.REWARD_REMOTE, reward)
    try:
        return as_scored(reward), None
    except NotARewardError as error:
        return None, describe(FailureKind.REWARD_NAN, f"the server {error}")
