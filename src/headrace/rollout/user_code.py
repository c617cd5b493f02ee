"""Code of the user's, called so that it ends its own work alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.plugins.raised import describe_exception

T = TypeVar("T")


class CodeLeft(Exception):
    """Code of the user's ended by an exception that would have ended more than its episode."""


async def called(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """What `function` gives. Raises what it raises, KeyboardInterrupt too, and CodeLeft for whatever else is no
    `Exception`."""
    task = asyncio.current_task()
    try:
        return await function(*arguments)
    except (Exception, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise CodeLeft(f"it called sys.exit({error.code!r})") from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise CodeLeft("it raised CancelledError, though nobody cancelled it") from error
    except BaseException as error:
        if isinstance(error, GeneratorExit) and asyncio.current_task() is not task:
            raise  # it is left, and thrown away
        raise CodeLeft(f"it raised {describe_exception(error)}") from error
