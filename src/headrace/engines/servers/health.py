"""Whether a server still serves, and how it fares, as it says itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.config.errors import ConfigError
from headrace.engines.protocol import EngineError
from headrace.engines.servers.dialect import Dialect
from headrace.engines.servers.window import ServerLoad
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
            load = await dialect.fares() if is_up else None
        except ConfigError:
            is_up, load = False, None
        except Exception:  # of what it says of itself, which may be anything; its health is looked at again
            continue
        sick = 0 if is_up else sick + 1
        if load is not None:
            silent = 0
            hear(load)
        elif is_up:
            silent += 1
            if silent == _LOOKS:
                _warn(dialect)
    return EngineError(f"{dialect.name} says that it is not healthy, or nothing, {_LOOKS} times one after another")


def _warn(dialect: Dialect) -> None:
    logger.warning(
        "%s does not say how full its KV cache is: it is given max_concurrent_sequences requests at once, and throws "
        "sequences out where that is too many; lower engine.max_concurrent_sequences then",
        dialect.name,
    )
