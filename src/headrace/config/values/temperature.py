"""The temperatures that can be sampled at."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

LOWEST_TEMPERATURE = 0.01
"""At it, the rounding of float32 logits (some 1e-6) makes up to 1e-4 of a log-prob; far below it, logits divided by the
temperature overflow."""
HIGHEST_TEMPERATURE = 100.0

TEMPERATURES = f"0 (greedy), or between {LOWEST_TEMPERATURE:g} and {HIGHEST_TEMPERATURE:g}"


def is_temperature(value: float) -> bool:
    """Whether an engine samples at it; 0 is greedy."""
    return value == 0 or LOWEST_TEMPERATURE <= value <= HIGHEST_TEMPERATURE


def _checked(value: float) -> float:
    if not is_temperature(value):
        raise ValueError(f"{value:g} is too low to sample at; give {TEMPERATURES}")
    return value


SamplingTemperature = Annotated[float, Field(ge=LOWEST_TEMPERATURE, le=HIGHEST_TEMPERATURE)]
"""Of what is trained on: log-probs of greedy tokens say nothing."""
AnyTemperature = Annotated[float, Field(ge=0, le=HIGHEST_TEMPERATURE), AfterValidator(_checked)]
