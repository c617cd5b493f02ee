"""The reward `remote`: batches of samples are posted to one of several servers, which answers with a reward for each.

The request is `{"samples": [{"response", "row", "prompt", "messages"}, ...]}`, with `histories` in a sample of an
episode that has several; the answer `{"rewards": [...]}` of the same length: a finite number, or a text that says why
there is none.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from headrace.config.errors import ConfigError
from headrace.config.reward import REMOTE_TOKEN, RemoteRewardConfig
from headrace.config.values.tokens import token_of
from headrace.experience.failures import FailureKind, describe
from headrace.rewards.gathering import Gathering
from headrace.rewards.outcome import FailedReward, NotARewardError, Verdict, as_scored
from headrace.rewards.reward_servers import RequestRefused, RewardServer, RewardServers
from headrace.rewards.styles import Asked
from headrace.rewards.unwritable import CANNOT_WRITE, unwritable
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.together import together

_MOST_BYTES = 1 << 24
_TOO_MANY, _BAD_REQUEST, _SERVER_FAULT = 429, 400, 500
_OF_ANY_REQUEST = (401, 403, 404, 408)
"""Of the statuses that refuse a request, those that say nothing of what was in it."""


class _Passing(Exception):
    """A fault that may be gone when it is tried again."""


class _TooMany(_Passing):
    """It is asked too often."""


class _NotTaken(FailedReward):
    """It takes no request of ours, whatever is in it."""


class _Failed(FailedReward):
    """Of all tries."""

    def __init__(self, kind: FailureKind, detail: str, *, by_content: bool) -> None:
        """`by_content`: what was asked may be why, and so perhaps one sample of several."""
        super().__init__(kind, detail)
        self.by_content = by_content


class RemoteReward:
    """While all connections are busy samples gather, and then go together, to one of the servers. One that fails is
    left alone for a while: its samples go to another at once, and wait only where none is well. Of a batch that fails
    everywhere each sample is asked about alone, as far as there is time, so that an odd one fails by itself."""

    def __init__(self, config: RemoteRewardConfig, clock: Clock, tokens: Mapping[str, str] | None = None) -> None:
        """`tokens`: see `RewardPool`."""
        if not config.urls:
            raise ConfigError("reward.function is 'remote', which needs reward.remote.url")
        self._config = config
        self._clock = clock
        self._tokens = tokens
        self._servers = RewardServers(config.urls, config.backoff_s)
        self._gathering = Gathering(self._answer, at_once=config.connections, most=config.batch, what="remote reward")
        self._free = asyncio.Semaphore(config.connections)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Raises ConfigError if the token is to come from an environment variable that is not set."""
        headers = {}
        if (name := self._config.token_env) is not None:
            token = token_of(REMOTE_TOKEN, name) if self._tokens is None else self._tokens[name]
            headers["Authorization"] = f"Bearer {token}"
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None))
        self._gathering.start()

    async def judge(self, arguments: list[Any]) -> Verdict:
        """The verdict on a sample, whose arguments are those of `Asked`."""
        return await self._gathering.judge(arguments)

    async def close(self) -> None:
        """Hang up, and cancel every call. Idempotent."""
        await self._gathering.close()
        if self._session is not None:
            await self._session.close()

    async def _answer(self, batch: Sequence[list[Any]]) -> list[Verdict]:
        """The verdict on each. One that cannot be written fails here, and goes to no server."""
        written = [_written(Asked(*arguments)) for arguments in batch]
        asked = iter(await self._judged([sample for sample in written if isinstance(sample, str)]))
        return [next(asked) if isinstance(sample, str) else sample for sample in written]

    async def _judged(self, samples: list[str]) -> list[Verdict]:
        """The verdicts on samples, which are JSON."""
        if not samples:
            return []
        config = self._config
        async with self._free:
            end = self._clock.now() + config.longest_s
            # If the last of several tries would leave no time to ask about each alone, that is the last one.
            last = end - config.timeout_s if len(samples) > 1 and config.tries > 1 else math.inf
            try:
                return [_verdict(reward) for reward in await self._persist(samples, config.tries, last)]
            except _Failed as error:
                failed, by_content = describe(error.kind, str(error)), error.by_content
        if len(samples) == 1 or not by_content:
            return [(None, failed)] * len(samples)
        return await together(self._alone(sample, end, failed) for sample in samples)

    async def _alone(self, sample: str, end: float, failed: str) -> Verdict:
        """The verdict on one sample of a batch that `failed`, which each server is asked for once at most; that of the
        batch, where it is not there at `end`."""

        async def asked() -> list[Any]:
            async with self._free:
                return await self._persist([sample], len(self._servers.all))

        try:
            (reward,) = await self._clock.wait_for(asked(), end - self._clock.now(), "the reward of one sample")
        except WaitTimeout:
            return None, failed
        except _Failed as error:
            return None, describe(error.kind, str(error))
        return _verdict(reward)

    async def _persist(self, samples: list[str], tries: int, last: float = math.inf) -> list[Any]:
        """The rewards of `samples`. Raises _Failed once no try is left. A server is not tried again if that could end
        after `last`."""
        body = f'{{"samples": [{", ".join(samples)}]}}'.encode()
        config, now = self._config, self._clock.now
        refused: dict[RewardServer, FailedReward] = {}
        """By servers whose answer would be the same again."""
        tried: set[RewardServer] = set()
        number, pauses, words, kind, by_content = 0, 0, "", FailureKind.REWARD_REMOTE, False
        while number < tries and (server := self._servers.choose(now(), refused, tried)) is not None:
            waits = server in tried and not self._servers.is_well(server, now())
            pause = config.backoff_s * 2**pauses if waits else 0.0
            if server in tried and now() + pause + config.timeout_s > last:
                break
            if waits:
                await self._clock.sleep(pause)
                pauses += 1
                server = self._servers.choose(now(), refused, tried) or server
            tried.add(server)
            number += 1
            try:
                return await self._ask(server, body, len(samples))
            except WaitTimeout as error:
                kind, words, by_content = FailureKind.REWARD_TIMEOUT, str(error), True
            except (_Passing, aiohttp.ClientError, OSError) as error:
                kind, words = FailureKind.REWARD_REMOTE, f"{server.url}: {str(error) or type(error).__name__}"
                by_content |= not isinstance(error, _TooMany | aiohttp.ClientConnectorError)
            except FailedReward as error:
                refused[server] = error
                by_content |= not isinstance(error, _NotTaken)
        if len(refused) == len(self._servers.all):
            refusal = next(reversed(refused.values()))
            raise _Failed(refusal.kind, str(refusal), by_content=by_content)
        raise _Failed(kind, f"{words} (tried {number} times)", by_content=by_content)

    async def _ask(self, server: RewardServer, body: bytes, count: int) -> list[Any]:
        """Of one server, which is told apart by how it answers. Raises WaitTimeout, FailedReward, and what may pass."""
        answer = self._post(server.url, body, count)
        with self._servers.asked(server, self._clock.now):
            return await self._clock.wait_for(answer, self._config.timeout_s, f"an answer of {server.url}")

    async def _post(self, url: str, body: bytes, count: int) -> list[Any]:
        assert self._session is not None
        headers = {"Content-Type": "application/json"}
        # A redirect would carry the token and the samples elsewhere.
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            if answer.status == _TOO_MANY or answer.status >= _SERVER_FAULT:
                raise (_TooMany if answer.status == _TOO_MANY else _Passing)(f"status {answer.status}")
            data = await answer.content.read(_MOST_BYTES + 1) if answer.status == 200 else b""
            while answer.status == 200 and len(data) <= _MOST_BYTES and not answer.content.at_eof():
                data += await answer.content.read(_MOST_BYTES + 1 - len(data))
        if answer.status != 200:
            of_content = answer.status >= _BAD_REQUEST and answer.status not in _OF_ANY_REQUEST
            refused = RequestRefused if of_content else _NotTaken
            raise refused(FailureKind.REWARD_REMOTE, f"{url} answered with status {answer.status}")
        return _rewards(data, count, url)


def _written(asked: Asked) -> str | Verdict:
    """The sample as JSON, or why it has no such form."""
    told: dict[str, Any] = {"response": asked.response, "row": asked.row, "prompt": asked.prompt}
    told["messages"] = asked.conversation()
    if asked.earlier:
        told["histories"] = asked.histories()
    try:
        return json.dumps(told)
    except CANNOT_WRITE as error:
        return None, describe(FailureKind.REWARD_REMOTE, unwritable(told, error))


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
