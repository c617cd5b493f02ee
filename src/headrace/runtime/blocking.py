"""From plain code into an event loop, and back when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.config.errors import ConfigError

T = TypeVar("T")


def run_to_end(make: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
    """The result of the coroutine that `make` makes, in an event loop of its own.

    Raises ConfigError where a loop runs already, as in a notebook, before anything is begun. `what` names the caller.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    raise ConfigError(
        f"{what} needs an event loop of its own, and is called where one runs already, as in a notebook; run it from a "
        "shell (in a notebook: !headrace ...), or in a process of its own"
    )
