"""SGLang's HTTP, of version 0.5.23: ids in and out by `/generate`, and the motions of RL."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.errors import ConfigError
from headrace.engines.protocol import EngineError, GenerateRequest, RequestError, SwapMode
from headrace.engines.servers.dialect import Expected, Piece
from headrace.engines.servers.http import DENIED, ServerGone, ServerHttp, ServerRefused, denied
from headrace.engines.servers.routes import require_routes
from headrace.engines.servers.same_model import identity_in, require_kind, require_same_model
from headrace.engines.servers.sglang_answer import SglangAnswer, body_of, server_id
from headrace.engines.servers.sglang_group import SglangGroup
from headrace.engines.servers.sglang_told import (
    NEWEST,
    PROBE_IDS,
    PROBE_TEMPERATURE,
    is_of_vocabulary,
    not_of_vocabulary,
    require_answers,
    require_fits,
    require_one_copy,
    routes,
)
from headrace.engines.servers.weight_sender import WeightSender
from headrace.engines.servers.window import ServerLoad
from headrace.runtime.progress import FIRST_S
from headrace.runtime.protocol import Services
from headrace.weights.model_folder import model_folder
from headrace.weights.plane import WeightError, WeightOffer

_HEALTH_S, _CALL_S, _LOAD_S, _PAUSE_S = 20.0, 60.0, 1800.0, 600.0
_LANE = "weights"
_NOT_FOUND, _NO_METHOD, _BAD_REQUEST = 404, 405, 400
_QUIET, _CALLS = 2, 200
"""Calls in a row in which no token may come, and how often it is tried."""


class SglangDialect:
    """See `Dialect`."""

    retracts = True

    def __init__(
        self, http: ServerHttp, vocab_size: int, services: Services, sender: WeightSender | None = None
    ) -> None:
        """`sender`: what weights come from; unless given, the server reads a folder."""
        self._http = http
        self._group = None if sender is None else SglangGroup(http, sender)
        self._ranks = 1
        """Processes that take weights."""
        self._vocab_size = vocab_size
        self._services = services
        self.name = "SGLang"
        self.together: int | None = None
        self._overlaps = True
        """Whether it computes a step before the last one's tokens are told of: these would count to new weights."""
        self._keeps = False
        """What is in flight while it is paused goes on with its keys and values."""
        self._prefers = False
        """Whether it computes first what has a priority."""
        self._loads = 0
        self._mark = secrets.token_hex(4)
        """Ours alone: somebody who was attached before may have counted as we do."""
        self._is_loading = self._is_paused = False
        self._came = 0
        """Tokens."""
        self._asked: dict[str, bool] = {}
        """Requests, and whether a token of it came."""
        self._to_abort: set[str] = set()
        """Once it goes on: one that comes while it is paused is held before its scheduler, which an abort does not wait
        for, and a second one is not passed on."""

    @property
    def _salt(self) -> str:
        """Of the prefix cache: what was computed under other weights is not found."""
        return f"{self._mark}-{self._loads}"

    async def is_up(self) -> bool:
        """See `Dialect.is_up`. The answer is the scheduler's, which gives it also while it is paused; while it loads
        weights, that of the process before it."""
        return await self._http.answers("/model_info" if self._is_loading else "/server_info", seconds=_HEALTH_S)

    async def meet(self, expected: Expected) -> None:
        """See `Dialect.meet`. One that was left paused goes on."""
        where = f"at {self._http.url}"
        try:
            info = await self._info()
        except ServerRefused as error:
            if error.status != _NOT_FOUND:
                raise
            raise ConfigError(
                f"the server {where} has no /server_info: it is no SGLang, or one that is too old; {NEWEST}"
            ) from error
        self.name = f"SGLang {info.get('version', 'of an unknown version')}"
        await self._require_same_model(info, expected, f"{self.name} {where}")
        require_fits(info, expected, f"{self.name} {where}")
        if self._group is not None:
            self._ranks = require_one_copy(info, f"{self.name} {where}")
        needed = routes(by_group=self._group is not None)
        await require_routes(self._http, needed, answered="/server_info", where=f"{self.name} {where}", mend=NEWEST)
        self._overlaps = not info.get("disable_overlap_schedule", False)
        self._prefers = bool(info.get("enable_priority_scheduling", False))
        most = info.get("max_running_requests")
        self.together = most if isinstance(most, int) else None
        await self._require_goes_on(f"{self.name} {where}")
        await self._require_tells(expected, f"{self.name} {where}")

    async def _require_same_model(self, info: Mapping[str, Any], expected: Expected, where: str) -> None:
        """By the config in the folder that it was started with, unless that is the run's own or cannot be read here.
        Raises ConfigError."""
        folder, changes = str(info.get("model_path", "")), str(info.get("json_model_override_args") or "{}")
        if (folder, changes) != (expected.weights, "{}"):
            there = await self._services.compute(_LANE, identity_in, folder, changes)
            require_same_model(there, expected, where)
        with suppress(ServerRefused):
            told = await self._http.call("GET", "/model_info", what="its model", seconds=_CALL_S)
            require_kind(told.get("model_type") if isinstance(told, dict) else None, expected, where)

    async def _require_goes_on(self, where: str) -> None:
        """By the first of the routes that an admin's key may be asked for at. Raises ConfigError."""
        try:
            await self.resume()
        except ServerRefused as error:
            if error.status in DENIED:
                key = "its --admin-api-key (without an --api-key, engine.token_env may as well)"
                where = f"{where}, at /continue_generation,"
                raise ConfigError(denied(where, error.status, "engine.admin_token_env", key)) from error
            if error.status in (_NOT_FOUND, _NO_METHOD):
                raise ConfigError(f"{where} has no /continue_generation ({error.status}); {NEWEST}") from error
            raise

    async def _require_tells(self, expected: Expected, where: str) -> None:
        """By a first token. Raises ConfigError."""
        try:
            told = await self._first_token()
        except ServerRefused as error:
            raise ConfigError(f"{where} does not give a first token: {error}") from error
        require_answers(told, expected, where)
        if is_of_vocabulary(told, self._vocab_size):
            return
        of_ids = None
        with suppress(ServerRefused):
            of_ids = await self._first_token(token_ids_logprob=[*range(min(PROBE_IDS, self._vocab_size))])
        raise ConfigError(not_of_vocabulary(told, of_ids, self._vocab_size, where))

    async def _first_token(self, **asked: Any) -> Any:
        """Of two that are kept, where all ids are equally likely."""
        sampling = {"max_new_tokens": 1, "temperature": PROBE_TEMPERATURE, "top_k": 2, "ignore_eos": True}
        body = {
            "rid": "meet",
            "input_ids": [0],
            "return_logprob": True,
            "return_sampling_mask": True,
            "sampling_params": sampling,
            **asked,
        }
        return await self._http.call("POST", "/generate", body, what="a first token", seconds=FIRST_S)

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        """See `Dialect.stream`. Raises RequestError for what the server says is a bad request."""
        what = f"request {request.request_id}"
        answer = SglangAnswer(request, self._vocab_size)
        events = self._http.events("/generate", body_of(request, salt=self._salt), what=what)
        self._asked[request.request_id] = False
        try:
            async for event in events:
                if (error := event.get("error")) is not None:
                    words = f"{what}: {_said(error)}"
                    raise RequestError(words) if _code(error) == _BAD_REQUEST else ServerGone(words)
                piece = answer.piece(event)
                self._came += len(piece.tokens)
                if len(piece.tokens):
                    self._asked[request.request_id] = True
                    await self._abort_at_last(request.request_id)
                yield piece
        except ServerRefused as error:
            if error.status == _BAD_REQUEST:
                raise RequestError(str(error)) from error
            raise
        finally:
            self._asked.pop(request.request_id, None)
            self._to_abort.discard(request.request_id)
            await events.aclose()

    async def _abort_at_last(self, name: str) -> None:
        """A request of which a token came: so the scheduler knows it."""
        if name in self._to_abort:
            self._to_abort.discard(name)
            with suppress(EngineError):  # what is not ended is read to its end
                await self.abort([name])

    async def abort(self, request_ids: Iterable[str]) -> None:
        """See `Dialect.abort`. While it is paused, of what no token came of yet only once one comes: what it holds back
        it would forget to end, and take no second word of."""
        for name in request_ids:
            if self._is_paused and not self._asked.get(name, True):
                self._to_abort.add(name)
                continue
            await self._http.call(
                "POST", "/abort_request", {"rid": server_id(name)}, what=f"{name} to be ended", seconds=_CALL_S
            )

    async def pause(self, mode: SwapMode) -> None:
        """See `Dialect.pause`. Where it overlaps steps, `keep` is as `recompute`."""
        self._keeps = mode is SwapMode.KEEP and not self._overlaps
        how = {"mode": "in_place" if self._keeps else "retract"}
        self._is_paused = True
        await self._http.call("POST", "/pause_generation", how, what="the server to pause", seconds=_PAUSE_S)

    async def resume(self) -> None:
        """See `Dialect.resume`."""
        body = {"torch_empty_cache": False}
        await self._http.call("POST", "/continue_generation", body, what="the server to go on", seconds=_CALL_S)
        self._is_paused = False

    async def load(self, offer: WeightOffer, name: str) -> None:
        """See `Dialect.load`. What was computed under other weights is not found in the prefix cache: it is emptied,
        unless requests rest with what they have there; those that come have another salt. Raises WeightError where the
        server refuses the version."""
        self._loads += 1
        self._is_loading = True
        try:
            if self._group is None:
                await self._load_folder(offer, name)
            else:
                await self._group.load(offer, name, ranks=self._ranks, flush=not self._keeps)
        except ServerRefused as error:
            raise WeightError(f"{self.name} did not take {offer.version}: {_said(error.text)}") from error
        finally:
            self._is_loading = False
        told = await self._http.call("GET", "/model_info", what="the version that is loaded", seconds=_CALL_S)
        if told.get("weight_version") != name:
            raise WeightError(f"{self.name} says that it has {told.get('weight_version')!r}, and took {name!r}")

    async def _load_folder(self, offer: WeightOffer, name: str) -> None:
        folder = await self._services.compute(_LANE, model_folder, offer)
        body = {
            "model_path": str(folder),
            "load_format": "safetensors",
            "weight_version": name,
            "flush_cache": not self._keeps,
            "abort_all_requests": False,
        }
        what = f"{offer.version} to be loaded"
        await self._http.call("POST", "/update_weights_from_disk", body, what=what, seconds=_LOAD_S)

    async def score(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """See `Dialect.score`. Before what was retracted is computed again, where the server lets it."""
        body = {
            "rid": [f"check-{self._loads}-{number}." for number in range(len(tokens))],
            "input_ids": tokens.tolist(),
            "extra_key": [self._salt] * len(tokens),
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        } | ({"priority": 0} if self._prefers else {})  # whatever has none comes after
        answers = await self._http.call("POST", "/generate", body, what="the swap check", seconds=_CALL_S)
        self._came += len(tokens)
        told = [[each[0] for each in answer["meta_info"]["input_token_logprobs"][1:]] for answer in answers]
        return np.array(told, np.float32)

    async def sampled(self) -> int | None:
        """See `Dialect.sampled`. The server does not count: it is what came, once its scheduler has answered twice
        while nothing did. Its answers and its tokens go to one process, which takes them in turn: had tokens waited
        there, one at least would have come between two answers. For when nothing is sampled. Raises EngineError if
        tokens come all the same."""
        quiet = 0
        for _ in range(_CALLS):
            before = self._came
            await self._info()
            quiet = quiet + 1 if self._came == before else 0
            if quiet == _QUIET:
                return self._came
        raise EngineError(f"{self.name} was paused, and tokens come all the same")

    async def fares(self) -> ServerLoad | None:
        """See `Dialect.fares`. That it threw sequences out is not told: a pause does so as well."""
        try:
            told = await self._http.call("GET", "/v1/loads", what="the server's load", seconds=_CALL_S)
        except ServerRefused:
            return None
        loads = told.get("loads") if isinstance(told, dict) else None
        if not loads or any("token_usage" not in each for each in loads):
            return None
        use = max(float(each["token_usage"]) for each in loads)
        return ServerLoad(use, sum(int(each["num_running_reqs"]) for each in loads), 0)

    async def _info(self) -> dict[str, Any]:
        found = await self._http.call("GET", "/server_info", what="the server's state", seconds=_CALL_S)
        if not isinstance(found, dict):
            raise ServerGone(f"{self._http.url} answers /server_info by what is no state: {str(found)[:80]!r}")
        return found


def _code(error: Any) -> int | None:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else None


def _said(error: Any) -> str:
    """The words in an answer of the server's."""
    if isinstance(error, dict):
        return str(error.get("message", error))[:400]
    return str(error)[:400]
