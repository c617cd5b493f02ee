"""Python's garbage collector, which holds up every thread of a process while it looks for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 10_000
"""Objects that are made before the youngest are looked at. A run makes some hundred thousand a second, nearly all of
which are freed by their counts; Python's own 700 has them looked at, and found to be in use, again and again."""
_IMPORTED = 50_000
"""The same while a process begins: imports make a million objects, and all of them stay."""


def expect_imports() -> None:
    """At the start of a process: collections are a fifth of what it takes to import torch and transformers else."""
    gc.set_threshold(_IMPORTED)


@contextmanager
def rare_collections() -> Iterator[None]:
    """What there is now is not looked at until this is left: imported modules and loaded models are a million objects
    that a full collection goes over for a fifth of a second. What is made from now on is, more rarely than else.

    Where something is left out already, whoever saw to that has the say in it: nothing is added, nor taken back."""
    before = gc.get_threshold()
    freezes = not gc.get_freeze_count()
    gc.collect()
    if freezes:
        gc.freeze()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()
