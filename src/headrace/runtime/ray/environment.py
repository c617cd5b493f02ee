"""What Ray reads from the environment when it is imported; so this is called before, and imports none of it."""

from __future__ import annotations

import os
import secrets
import sys

from headrace.errors import HeadraceError

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_TOKENS = (_TOKEN, "RAY_AUTH_TOKEN_PATH")
_MANY_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Where it is 0, Ray's own processes listen on loopback alone, on any system."""

_NICENESS = "RAY_worker_niceness"
"""Of actors, 15 unless given: whatever else computes on the machine would come first."""


class RayImported(HeadraceError, RuntimeError):
    """It reads no token any more."""


def prepare(address: str | None) -> None:
    """`address`: of a cluster, whose token the environment or Ray's own file has; None for one that is started here,
    with a token that is made up, unless the environment has one. Raises RayImported."""
    imported = sys.modules.get("ray")
    if imported is not None and not (_MODE in os.environ or imported.is_initialized()):
        raise RayImported(
            f"ray was imported before the run could give it a token; set {_MODE}=token and {_TOKEN} in the environment "
            "of this process, import ray later, or call ray.init first"
        )
    os.environ.setdefault(_MODE, "token")
    if address is None:
        os.environ.setdefault(_MANY_NODES, "0")
        os.environ.setdefault(_NICENESS, "0")
        if not any(name in os.environ for name in _TOKENS):
            os.environ[_TOKEN] = secrets.token_hex(32)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"):
        os.environ.setdefault(name, "0")
