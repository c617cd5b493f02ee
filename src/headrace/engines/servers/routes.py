"""Whether a server has the routes that are asked of it later, by the list that it serves of itself: nothing is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config.errors import ConfigError
from headrace.engines.protocol import EngineError
from headrace.engines.servers.http import ServerHttp

_LIST = "/openapi.json"
"""Of any FastAPI app, unless it is told not to serve it."""
_LIST_S = 60.0

Routes = Mapping[str, str]
"""Of paths, the method by which each is asked."""


async def require_routes(http: ServerHttp, needed: Routes, *, answered: str, where: str, mend: str) -> None:
    """`answered`: a path that has answered; a list without it, as of a proxy in front, tells nothing, and neither does
    one that is not served. `where`: the server's name and address. Raises ConfigError."""
    try:
        told = await http.call("GET", _LIST, what="its routes", seconds=_LIST_S)
    except EngineError:  # what is asked of it next tells whether it is there
        return
    paths = told.get("paths") if isinstance(told, dict) else None
    if not isinstance(paths, dict) or answered not in paths:
        return
    missing = [f"{method} {path}" for path, method in needed.items() if not _has(paths.get(path), method)]
    if missing:
        raise ConfigError(f"{where} has no route {', '.join(missing)}, which it is asked by; {mend}")


def _has(methods: Any, method: str) -> bool:
    return isinstance(methods, dict) and method.lower() in methods
