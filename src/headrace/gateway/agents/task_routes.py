"""The routes by which agents outside of the run take episodes, and say what came of them."""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from headrace.gateway.asked_host import asked_host, loopback_host
from headrace.gateway.errors import ApiError
from headrace.gateway.fields import Fields
from headrace.gateway.http_json import read_json, respond, send_json
from headrace.gateway.sampling import Deadline
from headrace.rewards.outcome import LARGEST
from headrace.rollout.agent_outside import OutsidePlayer
from headrace.rollout.outside_tasks import OutsideTask, TaskEnded, TasksClosed, UnknownTask, task_id
from headrace.runtime.protocol import Clock, WaitTimeout

_BODY_S = 60.0
"""In which a request's body comes, and an answer is read."""
_WAIT_S, _LONGEST_WAIT_S = 30.0, 300.0
_LONGEST_FAILURE = 300
"""Characters."""


class TaskRoutes:
    def __init__(self, player: OutsidePlayer, clock: Clock) -> None:
        """Raises ConfigError if the token is not to be had."""
        self._tasks = player.tasks
        self._token = player.token()
        self._clock = clock
        self._token_env = player.config.token_env

    @property
    def is_guarded(self) -> bool:
        """Whether nothing is answered without a token or a key."""
        return self._token is not None

    def listen(self, address: str) -> None:
        """The listener of these routes is there."""
        self._tasks.listen(address, self._clock)

    def close(self) -> None:
        """Nobody is given a task any more."""
        self._tasks.close()

    @property
    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/tasks", self.take),
            web.post("/tasks/{id}/reward", self.reward),
            web.post("/tasks/{id}/end", self.end),
        ]

    async def take(self, request: web.Request) -> web.StreamResponse:
        """`{"wait_s": 30}`: the next episode; 429 if none comes within that time."""
        if self._token is not None and not self._has_token(request):
            raise _refused(f"send Authorization: Bearer with the token of {self._token_env}")
        host = self._host(request)  # before a task is taken, which would be lost
        fields = await self._fields(request)
        wait_s = fields.number("wait_s", _WAIT_S, 0.0, _LONGEST_WAIT_S)
        fields.refuse_rest({}, ())
        try:
            task = self._tasks.take_now()
            if task is None:
                task = await self._clock.wait_for(self._tasks.take(), wait_s, "a task")
        except WaitTimeout:
            return self._come_later()
        except TasksClosed as error:
            raise ApiError(str(error), status=410, code="run_over") from error
        told = {"id": task.id, **task.told, "base_url": self._base_url(request, host, task)}
        try:
            sent = await send_json(request, told, Deadline(self._clock, _BODY_S))
        except (ConnectionError, WaitTimeout):  # the client went away, or does not read
            self._tasks.put_back(task)
            return web.Response()
        except BaseException:
            self._tasks.put_back(task)
            raise
        self._tasks.heard(task)  # not before: the next one to take it has as much time
        return sent

    async def reward(self, request: web.Request) -> web.StreamResponse:
        """`{"reward": 0.5}`: that of the episode; the last one holds."""
        task = self._task(request)
        fields = await self._fields(request)
        reward = _reward(fields)
        fields.refuse_rest({}, ())
        if reward is None:
            raise ApiError("the body has no reward; send a number", param="reward")
        self._still(task).reward = reward
        return respond({"id": task.id, "reward": reward})

    async def end(self, request: web.Request) -> web.StreamResponse:
        """`{}`: the episode is over. With `reward` that is its reward; with `error`, a text, it has failed."""
        task = self._task(request)
        fields = await self._fields(request)
        reward, failure = _reward(fields), fields.get("error")
        fields.refuse_rest({}, ())
        if failure is not None and (not isinstance(failure, str) or not failure.strip()):
            raise ApiError("error must be a text that says what failed", param="error")
        if failure is not None and reward is not None:
            raise ApiError("a reward and an error are given; an episode that failed has no reward", param="error")
        self._still(task)
        if reward is not None:
            task.reward = reward
        try:
            await task.told_end(None if failure is None else " ".join(failure.split())[:_LONGEST_FAILURE])
        except TaskEnded as error:
            raise _ended(error) from error
        return respond({"id": task.id, "ended": True})

    def _task(self, request: web.Request) -> OutsideTask:
        """Raises ApiError."""
        self._host(request)
        id = request.match_info["id"]
        if not self._has_token(request) and not hmac.compare_digest(task_id(_bearer(request)).encode(), id.encode()):
            raise _refused("send Authorization: Bearer with the api_key of the task")
        return self._found(id)

    def _still(self, task: OutsideTask) -> OutsideTask:
        """It may have ended while the body came. Raises ApiError."""
        return self._found(task.id)

    def _found(self, id: str) -> OutsideTask:
        try:
            return self._tasks.find(id)
        except UnknownTask as error:
            raise ApiError(str(error), status=404, code="task_not_found") from error
        except TaskEnded as error:
            raise _ended(error) from error

    def _base_url(self, request: web.Request, host: str, task: OutsideTask) -> str:
        """By the address that the agent knows, which need not be the one that is listened to; with the port of the
        listener that plays the episode, where that is another."""
        its, scheme = urlsplit(task.base_url), _scheme(request)
        if its.port == urlsplit(self._tasks.address).port:
            return f"{scheme}://{request.host}{its.path}"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{its.port}{its.path}"

    def _host(self, request: web.Request) -> str:
        """By which the agent knows the listener, without a port. Raises ApiError, also for one beyond loopback where no
        token is asked for."""
        if self._token is not None:
            return asked_host(request)
        return loopback_host(request, f"ask at {self._tasks.address}, or set rollout.agent.token_env")

    def _has_token(self, request: web.Request) -> bool:
        return self._token is not None and hmac.compare_digest(
            _bearer(request).encode(errors="surrogateescape"), self._token.encode()
        )

    async def _fields(self, request: web.Request) -> Fields:
        return Fields(await read_json(request, Deadline(self._clock, _BODY_S)))

    def _come_later(self) -> web.Response:
        seconds, awaited = self._tasks.retry()
        waits = f": the run's gate waits for {awaited}" if awaited else ""
        error = ApiError(
            f"no task is there{waits}; ask again in {seconds} s",
            status=429,
            kind="rate_limit_error",
            code="no_task",
        )
        return web.json_response(error.body, status=429, headers={"Retry-After": str(seconds)})


def _ended(error: TaskEnded) -> ApiError:
    return ApiError(str(error), status=409, code="task_ended")


def _refused(mend: str) -> ApiError:
    return ApiError(f"missing or wrong token; {mend}", status=401, code="invalid_api_key")


def _scheme(request: web.Request) -> str:
    """That the agent knows: as a proxy before the listener tells, of several the first."""
    told = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip()
    return told if told in ("http", "https") else request.scheme


def _bearer(request: web.Request) -> str:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _reward(fields: Fields) -> Any:
    """A finite number, if there is one. Raises ApiError."""
    return None if fields.get("reward") is None else fields.number("reward", 0.0, -LARGEST, LARGEST)
