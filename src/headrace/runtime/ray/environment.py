"""What Ray reads from the environment when it is imported; so this is called before, and imports none of it."""

from __future__ import annotations

import os
import secrets
import sys

from headrace.errors import HeadraceError

AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
BY_TOKEN = "token"
"""A mode."""
_MANY_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Where it is 0, Ray's own processes listen on loopback alone, on any system."""

_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""After so long without the cluster's head Ray ends this process at once, 60 s unless given: the run's own end comes
before."""
_FAST_LOOP = "RAY_USE_UVLOOP"
"""Whether actors have an event loop of `uvloop` where that is installed, 1 unless given. Code of the user's may want
Python's, as all other workers have it: some patch it, and what `uvloop` starts inherits more."""
_NICENESS = "RAY_worker_niceness"
"""Of actors, 15 unless given: whatever else computes on the machine would come first."""


class RayImported(HeadraceError, RuntimeError):
    """It reads no token any more."""


def prepare(address: str | None) -> None:
    """`address`: of a cluster, whose token the environment or Ray's own file has; None for one that is started here,
    with a token always: that of the environment, or one that is made up. Raises RayImported."""
    imported = sys.modules.get("ray")
    is_in_one = imported is not None and imported.is_initialized()
    if imported is not None and not is_in_one and (AUTH_MODE not in os.environ or _lets_all_in(address)):
        raise RayImported(
            f"ray was imported before the run could give it a token; set {AUTH_MODE}={BY_TOKEN} and {AUTH_TOKEN} in "
            "the environment of this process, import ray later, or call ray.init first"
        )
    os.environ.setdefault(_PATIENCE, "180")
    os.environ.setdefault(_FAST_LOOP, "0")
    if address is None and not is_in_one:
        os.environ[AUTH_MODE] = BY_TOKEN
        os.environ[_MANY_NODES] = "0"
        os.environ.setdefault(_NICENESS, "0")
        if not any(os.environ.get(name) for name in (AUTH_TOKEN, AUTH_TOKEN_PATH)):
            os.environ[AUTH_TOKEN] = secrets.token_hex(32)
    os.environ.setdefault(AUTH_MODE, BY_TOKEN)
    # Ray's functions begin a cluster where there is none, as where a run's own has ended.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_ENABLE_AUTO_CONNECT"):
        os.environ.setdefault(name, "0")


def _lets_all_in(address: str | None) -> bool:
    """Whether a Ray would be the run's own and have no token."""
    return address is None and os.environ[AUTH_MODE].lower() != BY_TOKEN
