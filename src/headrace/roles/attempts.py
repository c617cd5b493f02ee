"""What is told of an attempt that failed, and is made again."""

from __future__ import annotations

import logging

from headrace.errors import HeadraceError
from headrace.plugins.raised import describe_exception

logger = logging.getLogger(__name__)


def words_of_attempt(error: Exception, attempt: str) -> str:
    """For an event. Of what is no HeadraceError the type and the place too, and its traceback goes to the log."""
    if isinstance(error, HeadraceError) and not error.is_fault:
        return str(error)
    logger.warning("%s failed, and is tried again", attempt, exc_info=error)
    return str(error) if isinstance(error, HeadraceError) else describe_exception(error)
