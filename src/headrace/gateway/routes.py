"""The endpoints: each reads a job, asks the engine, and words the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from headrace.engines.completions import Asked
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import HFTokenizer, TextCodec
from headrace.gateway.choice_text import TextDelta, TextStream
from headrace.gateway.http_json import read_json, respond, stream_events
from headrace.gateway.requests import Job, ModelLimits, parse_chat, parse_completion, parse_generate
from headrace.gateway.responses import ChatShape, CompletionShape, Envelope, Shape, usage
from headrace.gateway.sampling import Deadline, merged, noise_key, sample
from headrace.gateway.token_events import token_event, token_events
from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.protocol import Clock

_MUCH_TEXT = 2**13
"""Bytes of a request."""


class Front:
    """Engines, served. Requests without a seed are keyed by `seed` and a running number."""

    def __init__(
        self,
        engines: EnginePool,
        tokenizer: HFTokenizer,
        limits: ModelLimits,
        *,
        clock: Clock,
        seed: int,
        timeout_s: float,
        template: ChatTemplate | None = None,
    ) -> None:
        self._engines = engines
        self._tokenizer = tokenizer
        self._codec = TextCodec(tokenizer, template)
        self._limits = limits
        self._clock = clock
        self._seed = seed
        self._timeout_s = timeout_s
        self._since = int(clock.wall())
        self._requests = 0

    async def health(self, _: web.Request) -> web.Response:
        """Raises EngineError once the engine is dead: it serves nothing more until the server is started again."""
        if self._engines.failure is not None:
            raise EngineError("the engine died; start the server again")
        return respond({"status": "ok"})

    async def version(self, _: web.Request) -> web.Response:
        """The version that the next decode step samples from."""
        version = self._engines.version
        return respond({"version": str(version), "branch": version.branch, "number": version.number})

    async def models(self, _: web.Request) -> web.Response:
        return respond({"object": "list", "data": [self._model()]})

    async def model(self, request: web.Request) -> web.Response:
        self._limits.check_name(request.match_info["model"])
        return respond(self._model())

    async def completions(self, request: web.Request) -> web.StreamResponse:
        deadline = self._deadline()
        job = await self._parsed(parse_completion, request, deadline)
        return await self._answer(request, job, CompletionShape(), deadline)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        deadline = self._deadline()
        job = await self._parsed(parse_chat, request, deadline)
        return await self._answer(request, job, ChatShape(), deadline)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Token ids in and out: `{"token_ids", "logprobs", "versions": [[branch, number, start, end]], ...}`.

        Spans are half-open, over the places of the response's tokens. Streamed, each event holds what is new. With
        `return_kept`, a request that truncates gets `"kept"` too: see `KeptSets`, its data in base64.
        """
        deadline = self._deadline()
        job = parse_generate(await read_json(request, deadline), self._limits)
        chunks = sample(self._engines, self._request(request, job, self._number(), 0, 0), deadline)
        if job.stream:
            return await stream_events(request, token_events(chunks), deadline)
        async with aclosing(chunks):
            parts = [chunk async for chunk in chunks]
        return respond(token_event(parts, 0))

    async def _parsed(
        self, parse: Callable[[Any, ModelLimits, TextCodec], Job], request: web.Request, deadline: Deadline
    ) -> Job:
        """Much text is tokenized on a thread, since that holds up every other request and the engine."""
        body = await read_json(request, deadline)
        if (request.content_length or _MUCH_TEXT) < _MUCH_TEXT:
            return parse(body, self._limits, self._codec)
        return await deadline.wait(on_own_thread(parse, body, self._limits, self._codec), "the prompt to be tokenized")

    def _deadline(self) -> Deadline:
        return Deadline(self._clock, self._timeout_s)

    def _number(self) -> int:
        self._requests += 1
        return self._requests

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._limits.name,
            "object": "model",
            "created": self._since,
            "owned_by": "headrace",
            "max_model_len": self._limits.max_context,
        }

    def _request(self, request: web.Request, job: Job, number: int, prompt: int, choice: int) -> Asked:
        key = noise_key(self._seed, number, prompt, choice) if job.seed is None else noise_key(job.seed, choice)
        return Asked(
            name=f"http-{number}-{prompt}-{choice}",
            prompt=job.prompts[prompt],
            sampling=job.sampling,
            noise_key=key,
            soon=job.stream or bool(job.stop),
            return_kept=job.return_kept,
            client=(f"{request.remote} {job.user}", str(number)),
        )

    async def _answer(self, request: web.Request, job: Job, shape: Shape, deadline: Deadline) -> web.StreamResponse:
        number = self._number()
        envelope = Envelope(shape, number, int(self._clock.wall()), self._limits.name)
        choices = merged(
            [
                self._choice(self._request(request, job, number, prompt, choice), job, deadline)
                for prompt in range(len(job.prompts))
                for choice in range(job.n)
            ]
        )
        if job.stream:
            return await stream_events(request, _text_events(choices, job, envelope), deadline)
        parts: list[list[TextDelta]] = [[] for _ in range(len(job.prompts) * job.n)]
        async with aclosing(choices):
            async for index, delta in choices:
                parts[index].append(delta)
        wholes = [_joined(deltas) for deltas in parts]
        return respond(
            envelope.whole(
                [shape.whole(index, whole, job.logprobs) for index, whole in enumerate(wholes)],
                usage(job.prompt_tokens, sum(whole.sampled for whole in wholes)),
            )
        )

    async def _choice(self, asked: Asked, job: Job, deadline: Deadline) -> AsyncGenerator[TextDelta, None]:
        text = TextStream(self._tokenizer, asked.prompt, job.stop, logprobs=job.logprobs)
        async with aclosing(sample(self._engines, asked, deadline)) as chunks:
            async for chunk in chunks:
                delta = text.push(chunk)
                yield delta
                if delta.finish_reason is not None:
                    return


async def _text_events(
    choices: AsyncGenerator[tuple[int, TextDelta], None], job: Job, envelope: Envelope
) -> AsyncGenerator[dict[str, Any], None]:
    opened = [False] * (len(job.prompts) * job.n)
    sampled = 0
    async with aclosing(choices):
        async for index, delta in choices:
            sampled += delta.sampled
            opening = None if opened[index] else envelope.shape.opening(index)
            opened[index] = True
            if opening is not None:
                yield envelope.chunk(opening)
            if delta.text or delta.tokens or delta.finish_reason is not None:
                yield envelope.chunk(envelope.shape.chunk(index, delta, job.logprobs))
    if job.include_usage:
        yield envelope.last_chunk(usage(job.prompt_tokens, sampled))


def _joined(deltas: list[TextDelta]) -> TextDelta:
    return TextDelta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        sampled=sum(delta.sampled for delta in deltas),
        finish_reason=deltas[-1].finish_reason,
    )
