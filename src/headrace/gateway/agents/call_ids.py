"""Ids of the calls that the policy wrote none for."""

from __future__ import annotations

import numpy as np

_BASE = 36
_DIGITS = 4
"""Of that base: for 1.7 million answers of a session, and calls of an answer."""


def call_id(answer: int, place: int) -> str:
    """Of the call at `place` in a session's `answer`, both from 0, and of no other. It has nine letters and digits: the
    chat templates of Mistral's models refuse all else."""
    return "c" + "".join(np.base_repr(number, _BASE).lower().zfill(_DIGITS) for number in (answer, place))
