"""That the tokens of a row are those of its header, which decided what of them is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from headrace.experience.header import SampleHeader, spans_in

OUR_FAULT = "this is a fault of Headrace; please report it with the run's folder"
SPANNED = ("loss_mask", "branches", "versions")
"""Columns that spans are of."""


class StalenessError(RuntimeError):
    """A trained token would be staler than the bound: the schedule is broken. Never trained through."""


def check_spans(header: SampleHeader, columns: Mapping[str, NDArray[Any]]) -> None:
    """Of the `SPANNED` columns that are trained: that the header, which decided on them, is theirs. O(T): where the
    model is. Raises StalenessError."""
    found = tuple(spans_in(*(columns[name] for name in SPANNED)))
    if found != header.spans:
        raise StalenessError(f"the tokens of group {header.key} are not those of its header: {OUR_FAULT}")
