"""Variables of the chat template, as a request gives them (`chat_template_kwargs`)."""

from __future__ import annotations

from typing import Any

from headrace.config.template import check_variables
from headrace.gateway.errors import ApiError


def checked_variables(value: Any) -> dict[str, Any]:
    """They go before those that the server was started with; none of None. Raises ApiError."""
    if value is None:
        return {}
    try:
        if not isinstance(value, dict):
            raise ValueError("chat_template_kwargs must be a JSON object")
        return check_variables(value)
    except ValueError as error:
        raise ApiError(str(error), param="chat_template_kwargs") from error
