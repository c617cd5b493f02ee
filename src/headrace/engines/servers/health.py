"""Whether a server still serves, and how it fares, as it says itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.config.errors import ConfigError
from headrace.engines.protocol import EngineError
from headrace.engines.servers.dialect import Dialect
from headrace.engines.servers.window import ServerLoad
from headrace.observe.failure import words_of
from headrace.runtime.protocol import Clock

logger = logging.getLogger(__name__)

_PAUSE_S, _LOOKS = 1.0, 3
"""Between two looks, and how many have to find it sick, one after another."""


async def until_sick(dialect: Dialect, clock: Clock, hear: Callable[[ServerLoad], None]) -> EngineError:
    """Looks for ever, or until the server is sick: its process may be there though what computes has ended, and then
    it holds calls that nobody will answer. `hear` is told how it fares; that it does not say is a warning, once."""
    sick = silent = 0
    while sick < _LOOKS:
        await clock.sleep(_PAUSE_S)
        try:
            is_up = await dialect.is_up()
        except ConfigError:
            is_up = False
        except Exception:  # whatever it answers; its health is looked at again
            continue
        if not is_up:
            sick += 1
            continue
        sick = 0
        why: Exception | None = None
        try:
            load = await dialect.fares()
        except Exception as error:  # of what it says of itself, which may be anything
            load, why = None, error
        if load is not None:
            silent = 0
            hear(load)
            continue
        silent += 1
        if silent == _LOOKS:
            _warn(dialect, why)
    return EngineError(f"{dialect.name} says that it is not healthy, or nothing, {_LOOKS} times one after another")


def _warn(dialect: Dialect, why: Exception | None) -> None:
    logger.warning(
        "%s does not say how full its KV cache is%s: it is given max_concurrent_sequences requests at once, and throws "
        "sequences out where that is too many; lower engine.max_concurrent_sequences then",
        dialect.name,
        "" if why is None else f" ({words_of(why)})",
    )
