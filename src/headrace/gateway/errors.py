"""Errors as OpenAI's clients expect them: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import web

from headrace.engines.protocol import EngineError, RequestError
from headrace.runtime.protocol import WaitTimeout

_LOG = logging.getLogger(__name__)
_INVALID = "invalid_request_error"
_SERVER = "server_error"


class ApiError(Exception):
    """A request that gets an error instead of an answer."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = _INVALID,
    ) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self._fields = {"message": message, "type": kind, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        return {"error": self._fields}


def as_api_error(error: Exception) -> ApiError:
    """What the client is told of `error`. An unforeseen one is logged, and its text kept from the client."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(str(error))
        case EngineError():
            return ApiError(str(error), status=503, kind=_SERVER, code="engine_error")
        case WaitTimeout():
            return ApiError(str(error), status=504, kind=_SERVER, code="timeout")
        case web.RequestPayloadError():
            return ApiError(f"the body cannot be read: {error}")
        case RecursionError():
            return ApiError("the body is nested too deeply; send it flatter")
        case web.HTTPRequestEntityTooLarge():
            return ApiError(f"the body is too large: {error.text}", status=413)
        case web.HTTPException():
            return ApiError(f"{error.reason}: see /v1/models for what is served", status=error.status)
    _LOG.error("request failed", exc_info=error)
    return ApiError("internal error; the server's log says more", status=500, kind=_SERVER)
