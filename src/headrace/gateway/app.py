"""The application: routes, the token, and errors in the API's words."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from headrace.engines.pool import EnginePool
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import HFTokenizer
from headrace.gateway.asked_host import loopback_host
from headrace.gateway.errors import ApiError, as_api_error
from headrace.gateway.requests import ModelLimits
from headrace.gateway.routes import Front
from headrace.runtime.protocol import Clock

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GUARDED = web.AppKey("guarded", bool)
"""Whether the application asks for a token."""
_OPEN_PATHS = ("/health",)
_LEAST_BODY_BYTES = 2**24
_BODY_BYTES_PER_TOKEN = 64


def build_app(
    engines: EnginePool,
    tokenizer: HFTokenizer,
    *,
    model_name: str,
    clock: Clock,
    token: str | None,
    max_context: int,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    seed: int,
    timeout_s: float = 600.0,
    template: ChatTemplate | None = None,
) -> web.Application:
    """The front of started `engines`, to be run by `serve`.

    With `token`, every path but /health wants `Authorization: Bearer <token>`; without one, a header `Host` on
    loopback. `max_context` is in tokens, prompt and
    response; `eos_token_ids` end a response unless the request says `ignore_eos`; `timeout_s` limits one request.
    Messages are rendered by `template`; by the tokenizer's own, with nothing added, unless given.
    """
    limits = ModelLimits(model_name, max_context, vocab_size, tuple(eos_token_ids))
    front = Front(engines, tokenizer, limits, clock=clock, seed=seed, timeout_s=timeout_s, template=template)
    app = web.Application(
        middlewares=[errors_as_json, _on_loopback if token is None else _guard(token)],
        client_max_size=max(_LEAST_BODY_BYTES, _BODY_BYTES_PER_TOKEN * max_context),
    )
    app[GUARDED] = token is not None
    app.add_routes(
        [
            web.get("/health", front.health),
            web.get("/version", front.version),
            web.get("/v1/models", front.models),
            web.get("/v1/models/{model:.+}", front.model),
            web.post("/v1/completions", front.completions),
            web.post("/v1/chat/completions", front.chat),
            web.post("/generate", front.generate),
        ]
    )
    return app


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        told = as_api_error(error)
        return web.json_response(told.body, status=told.status, dumps=json.dumps)


@web.middleware
async def _on_loopback(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path not in _OPEN_PATHS:
        loopback_host(request, "ask at 127.0.0.1, or give the server a token (--token-env)")
    return await handler(request)


def _guard(token: str) -> Middleware:
    expected = token.encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        known = scheme.lower() == "bearer"  # RFC 9110, 11.1: in any case
        matches = hmac.compare_digest(given.encode(errors="surrogateescape"), expected)
        if request.path not in _OPEN_PATHS and not (known and matches):
            raise ApiError(
                "missing or wrong token; send the header Authorization: Bearer <token>",
                status=401,
                code="invalid_api_key",
            )
        return await handler(request)

    return guard
