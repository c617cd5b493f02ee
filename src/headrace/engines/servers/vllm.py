"""vLLM's HTTP, of version 0.32: tokens in and out by its scale-out route, the motions of RL by its developer mode."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.config.errors import ConfigError
from headrace.engines.protocol import FinishReason, GenerateRequest, RequestError, SamplingParams, SwapMode
from headrace.engines.servers.dialect import Expected, Piece, Span
from headrace.engines.servers.http import DENIED, ServerGone, ServerHttp, ServerRefused, denied
from headrace.engines.servers.routes import require_routes
from headrace.engines.servers.vllm_command import TIES
from headrace.engines.servers.vllm_told import (
    NEWEST,
    PLUGIN,
    ROUTES,
    ids_asked_for,
    require_answers,
    require_fits,
    unread_of,
    world_size,
)
from headrace.engines.servers.weight_sender import STILL_S, WeightSender, chunks
from headrace.engines.servers.window import ServerLoad
from headrace.runtime.progress import FIRST_S
from headrace.runtime.together import together
from headrace.weights.plane import BUCKET_BYTES, WeightError, WeightOffer

logger = logging.getLogger(__name__)

_HEALTH_S, _CALL_S, _LOAD_S, _PAUSE_S = 20.0, 60.0, 1800.0, 600.0
_PREFIX = "generate-tokens-"
"""What the server puts before a request's id."""
_OUTSIDE = -1000.0
"""A log-prob below is that of an id which truncation left out."""
_FINISHES = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_BAD_REQUEST, _NO_TOKEN, _NOT_FOUND, _CLOSED = 400, 401, 404, (403, 404, 405)
_GENERATE = "/inference/v1/generate"
_WHOLE = 1e-3
"""What a kept set may lack of a probability of 1, by rounding."""
_GROUP = "headrace"
"""What keys of the group begin with, in the store by which it finds together."""
_FIRST = -1
"""A priority before that of whatever has none."""
_KV_USE, _RUNNING, _PREEMPTED = "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_preemptions_total"


class VllmDialect:
    """See `Dialect`."""

    retracts = False

    def __init__(self, http: ServerHttp, vocab_size: int, sender: WeightSender | None = None) -> None:
        """`sender`: what weights come from; unless given, the server reads where they are published."""
        self._http = http
        self._vocab_size = vocab_size
        self._sender = sender
        self._ranks = 1
        """Processes that take weights, of all copies of the model."""
        self.name = "vLLM"
        self.together: int | None = None
        self._prefers = False
        """Whether it computes first what has a priority."""
        self._loads = 0
        self._mark = secrets.token_hex(4)
        """Ours alone: somebody who was attached before may have counted as we do."""
        self._salt = f"{self._mark}-0"
        """Of the prefix cache: what was computed under other weights is not found."""
        self._unread: frozenset[str] = frozenset()
        """Parameters of which was said that nobody compares them."""

    async def is_up(self) -> bool:
        """See `Dialect.is_up`."""
        return await self._http.answers("/health", seconds=_HEALTH_S)

    async def meet(self, expected: Expected) -> None:
        """See `Dialect.meet`."""
        self.name = f"vLLM {await self._version()}"
        try:
            told = await self._rpc("headrace")
        except ServerRefused as error:
            if error.status in DENIED:
                raise ConfigError(denied(f"{self.name} at {self._http.url}", error.status)) from error
            raise ConfigError(
                f"{self.name} at {self._http.url} lacks the plugin {PLUGIN}, or its developer routes are closed "
                f"({error.status}); in a checkout of Headrace, with the pip of vLLM's environment: pip install "
                f"plugins/{PLUGIN}, and start vLLM as the README there says"
            ) from error
        if not told:
            raise ConfigError(
                f"{self.name} at {self._http.url} has no process that answers for {PLUGIN}; start it anew"
            )
        for each in told:
            require_fits(each, expected, self._vocab_size, f"{self.name} at {self._http.url}")
            self._prefers = each.get("scheduling_policy") == "priority"
        where = f"{self.name} at {self._http.url}"
        self._ranks = world_size(await self._of_route("/get_world_size"), where)
        most = told[0].get("max_num_seqs")
        self.together = most and most * max(1, self._ranks // len(told))  # of a copy, whose processes are told of
        await self._require_takes_ids()
        await require_routes(self._http, ROUTES, answered="/version", where=where, mend=NEWEST)
        await self._require_tells(expected)

    async def _version(self) -> str:
        """Raises ConfigError where it tells none."""
        where = f"the server at {self._http.url}"
        try:
            told = await self._http.call("GET", "/version", what="its version", seconds=_CALL_S)
        except ServerRefused as error:
            if error.status != _NOT_FOUND:
                raise
            raise ConfigError(f"{where} has no /version: it is no vLLM, or one that is too old; {NEWEST}") from error
        if not isinstance(told, dict) or "version" not in told:
            raise ConfigError(f"{where} answers /version by {str(told)[:80]!r}: it is no vLLM; {NEWEST}")
        return str(told["version"])

    async def _require_takes_ids(self) -> None:
        """By a request that is none, which a server that takes them refuses as such. Raises ConfigError."""
        where = f"{self.name} at {self._http.url}"
        try:
            await self._http.call("POST", _GENERATE, {}, what="whether it takes ids", seconds=_CALL_S)
        except ServerRefused as error:
            if error.status == _NO_TOKEN:
                raise ConfigError(denied(where, error.status)) from error
            if error.status in _CLOSED:
                raise ConfigError(
                    f"{where} does not answer {_GENERATE} ({error.status}); start it with --enable-scale-out, and "
                    f"{NEWEST}"
                ) from error

    async def _require_tells(self, expected: Expected) -> None:
        """By a first token. One that is paused holds it, and perhaps has weights that were never whole: by these it
        would end. Of it the first answer tells. Raises ConfigError."""
        where = f"{self.name} at {self._http.url}"
        await self._of_route("/metrics")  # which its list does not name
        state = await self._of_route("/is_paused")
        if isinstance(state, dict) and state.get("is_paused"):
            return
        top_k = min(expected.most_kept, self._vocab_size) if expected.truncates else 0
        sampling = SamplingParams(max_new_tokens=1, top_k=top_k)
        asked = GenerateRequest(
            f"meet-{self._mark}", np.zeros(1, np.int32), sampling, noise_key=0, return_kept=top_k > 0
        )
        body = {**self._body(asked), "stream": False}
        try:
            answer = await self._http.call("POST", _GENERATE, body, what="a first token", seconds=FIRST_S)
        except ServerRefused as error:
            raise ConfigError(f"{where} does not give a first token: {error}") from error
        require_answers(answer, top_k, where)

    async def _of_route(self, path: str) -> Any:
        """What one that it has to have is answered by. Raises ConfigError."""
        try:
            return await self._http.call("GET", path, what=f"its {path}", seconds=_CALL_S)
        except ServerRefused as error:
            if error.status not in _CLOSED:
                raise
            where = f"{self.name} at {self._http.url}"
            raise ConfigError(f"{where} does not answer GET {path} ({error.status}); {NEWEST}") from error

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        """See `Dialect.stream`. Raises RequestError for what the server says is a bad request."""
        body = self._body(request)
        what = f"request {request.request_id}"
        events = self._http.events(_GENERATE, body, what=what)
        try:
            async for event in events:
                if "error" in event:
                    raise ServerGone(f"{what}: {_said(event['error'])}")
                choice = event["choices"][0] if event.get("choices") else None
                if choice is not None:
                    yield self._piece(choice, request)
        except ServerRefused as error:
            if error.status == _BAD_REQUEST:
                raise RequestError(str(error)) from error
            raise
        finally:
            await events.aclose()

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling
        if request.return_kept and sampling.truncates and sampling.top_k <= 0:
            raise RequestError(
                f"request {request.request_id}: vLLM tells kept sets under top_k alone; set rollout.sampling.top_k"
            )
        wants_kept = request.return_kept and sampling.truncates
        return {
            "request_id": request.request_id,
            "token_ids": request.prompt.tolist(),
            "stream": True,
            "cache_salt": self._salt,
            "sampling_params": {
                "max_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k if sampling.top_k > 0 else -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "watermarking": False,
                "stop_token_ids": list(sampling.stop_token_ids),
                "ignore_eos": True,
                "logprobs": ids_asked_for(sampling.top_k, self._vocab_size) if wants_kept else 0,
                "detokenize": False,
                "skip_special_tokens": False,
            },
        }

    def _piece(self, choice: dict[str, Any], request: GenerateRequest) -> Piece:
        tokens = choice.get("token_ids") or []
        content = (choice.get("logprobs") or {}).get("content") or []
        if len(content) != len(tokens):
            raise ServerGone(f"request {request.request_id}: {len(content)} log-probs came with {len(tokens)} tokens")
        finish = choice.get("finish_reason")
        spans = choice.get("weight_versions")
        if finish is not None and spans is None:
            raise ServerGone(
                f"request {request.request_id}: {self.name} does not tell which weights sampled the answer: it is too "
                f"old; {NEWEST}"
            )
        return Piece(
            np.array(tokens, np.int32),
            np.array([each["logprob"] for each in content], np.float32),
            self._kept(content, request) if request.return_kept and request.sampling.truncates and tokens else None,
            None if finish is None else _finish(finish, request.request_id),
            None if spans is None else tuple(Span(each["version"], each["start"], each["end"]) for each in spans),
        )

    def _kept(self, content: Sequence[dict[str, Any]], request: GenerateRequest) -> KeptSets:
        """Those of the most likely ids that have a log-prob: under top-k no others do. Raises RequestError where more
        are equally likely than were asked for."""
        sets = []
        for one in content:
            kept = {each["token_id"]: each["logprob"] for each in one["top_logprobs"] if each["logprob"] > _OUTSIDE}
            whole = math.fsum(map(math.exp, kept.values()))
            if whole < 1 - _WHOLE:
                raise RequestError(
                    f"request {request.request_id}: of what top_k {request.sampling.top_k} keeps vLLM told {len(kept)} "
                    f"ids of a probability of {whole:.4f}: more than {TIES} others are as likely as the last one"
                )
            sets.append(sorted(kept))
        ids = np.array([each for one in sets for each in one], np.int32)
        return KeptSets.of(ids, np.array([len(one) for one in sets], np.int32), self._vocab_size)

    async def abort(self, request_ids: Iterable[str]) -> None:
        """See `Dialect.abort`."""
        ids = [_PREFIX + each for each in request_ids]
        if ids:
            await self._http.call(
                "POST", "/abort_requests", {"request_ids": ids}, what="requests to be ended", seconds=_CALL_S
            )

    async def pause(self, mode: SwapMode) -> None:
        """See `Dialect.pause`."""
        query = {"mode": "keep", "clear_cache": "false"} if mode is SwapMode.KEEP else {"mode": "abort"}
        await self._http.call("POST", "/pause", query=query, what="the server to pause", seconds=_PAUSE_S)

    async def resume(self) -> None:
        """See `Dialect.resume`."""
        await self._http.call("POST", "/resume", what="the server to go on", seconds=_CALL_S)

    async def load(self, offer: WeightOffer, name: str) -> None:
        """See `Dialect.load`. Raises WeightError where the plugin refuses the version."""
        call, version = self._http.call, offer.version
        self._loads += 1
        self._salt = f"{self._mark}-{self._loads}"
        try:
            await self._begin()
            if self._sender is None:
                await self._update(offer, {"transport": offer.transport, "address": offer.address})
            else:
                await self._update_by(self._sender, offer)
            await call("POST", "/finish_weight_update", {"weight_version": name}, what="its end", seconds=_CALL_S)
            told = await call("GET", "/weight_info", what="the version that is loaded", seconds=_CALL_S)
        except ServerRefused as error:
            raise WeightError(f"{self.name} did not take {version}: {_said(error.text)}") from error
        if told.get("weight_version") != name:
            raise WeightError(f"{self.name} says that it has {told.get('weight_version')!r}, and took {name!r}")
        await self._require_compared(name)

    async def _require_compared(self, name: str) -> None:
        """By each of its processes. What none could compare is said, once. Raises WeightError."""
        unread = frozenset(unread_of(await self._rpc("headrace"), name, self.name))
        if not unread <= self._unread:
            self._unread = unread
            logger.warning(
                "%s at %s: %d of its parameters, as %s, cannot be compared with what is published; of them the swap "
                "check finds gross faults alone",
                self.name,
                self._http.url,
                len(unread),
                min(unread),
            )

    async def _begin(self) -> None:
        """One that never came to its bytes may have been left open, and then another one is refused."""
        call = self._http.call
        try:
            await call("POST", "/start_weight_update", what="an update to begin", seconds=_CALL_S)
        except ServerRefused:
            await call("POST", "/finish_weight_update", {}, what="an update that failed to end", seconds=_CALL_S)
            await call("POST", "/start_weight_update", what="an update to begin", seconds=_CALL_S)

    async def _update(self, offer: WeightOffer, how: Mapping[str, Any]) -> None:
        version = offer.version
        body = {"update_info": {"branch": version.branch, "number": version.number, **how}}
        await self._http.call("POST", "/update_weights", body, what=f"{version} to be loaded", seconds=_LOAD_S)

    async def _update_by(self, sender: WeightSender, offer: WeightOffer) -> None:
        """The server comes to the group, if it is not in it, while it is told of the version."""
        await sender.open()
        entries = await sender.take(offer)
        how = {
            "transport": "gloo",
            "address": f"{sender.host}:{sender.port}",
            "entries": [{"name": each.name, "shape": each.shape, "dtype": each.dtype} for each in entries],
            "at_once": BUCKET_BYTES,
            "ranks": self._ranks,
            "seconds": STILL_S,
        }

        async def send() -> None:
            if not sender.has_group:
                await sender.join((_GROUP,), self._ranks)
            await sender.send(chunks(entries), sums=True)
            await sender.leave()

        await sender.during(self._update(offer, how), send())

    async def score(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """See `Dialect.score`. As prompts: the server samples one token behind each, which nobody takes."""
        found = await together(self._scored(number, sample) for number, sample in enumerate(tokens))
        return np.array(found, np.float32)

    async def _scored(self, number: int, sample: NDArray[np.int32]) -> list[float]:
        body = {
            "request_id": f"check-{number}",
            "token_ids": sample.tolist(),
            "stream": False,
            "cache_salt": self._salt,
            "sampling_params": {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False},
        } | ({"priority": _FIRST} if self._prefers else {})
        answer = await self._http.call("POST", _GENERATE, body, what="the swap check", seconds=_CALL_S)
        told = answer["prompt_logprobs"]
        return [float(told[place][str(int(sample[place]))]["logprob"]) for place in range(1, len(sample))]

    async def sampled(self) -> int | None:
        """See `Dialect.sampled`."""
        counts = await self._metrics("vllm:generation_tokens_total")
        return int(sum(counts["vllm:generation_tokens_total"])) if counts else None

    async def fares(self) -> ServerLoad | None:
        """See `Dialect.fares`."""
        told = await self._metrics(_KV_USE, _RUNNING, _PREEMPTED)
        if _KV_USE not in told:
            return None
        return ServerLoad(max(told[_KV_USE]), int(sum(told.get(_RUNNING, []))), int(sum(told.get(_PREEMPTED, []))))

    async def _metrics(self, *names: str) -> dict[str, list[float]]:
        """Of those that it has, the value for each of its engines."""
        text = await self._http.call("GET", "/metrics", what="its metrics", seconds=_CALL_S)
        found: dict[str, list[float]] = {}
        for line in str(text).splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in names:
                found.setdefault(name, []).append(float(line.rsplit(" ", 1)[1]))
        return found

    async def _rpc(self, method: str) -> list[dict[str, Any]]:
        answer = await self._http.call(
            "POST", "/collective_rpc", {"method": method}, what=f"the workers' {method}", seconds=_CALL_S
        )
        return [each for each in answer["results"] if isinstance(each, dict)]


def _finish(word: str, request_id: str) -> FinishReason:
    if word not in _FINISHES:
        raise ServerGone(f"request {request_id} ended by {word!r}")
    return _FINISHES[word]


def _said(error: Any) -> str:
    """The words in an answer of the server's."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:400]
    return str(error)[:400]
