"""Rows of figures as they come, of which one that cannot be made leaves those before and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

Row = dict[str, Any]
MakeRows = Callable[[], Iterable[Row]]
FAILED = "failed"
NOT_BEGUN = "not begun: the time to begin was over"
_LONGEST = 300
_OF_TRACEBACK = '  File "'


def row(make: Callable[..., Row], *args: Any, **named: Any) -> MakeRows:
    """`make` with these, when it is its turn."""
    return partial(_single, make, *args, **named)


def _single(make: Callable[..., Row], *args: Any, **named: Any) -> Iterator[Row]:
    yield make(*args, **named)


def as_they_come(
    makes: Iterable[MakeRows], free: Callable[[], None], may_begin: Callable[[], bool] = lambda: True
) -> Iterator[Row]:
    """All rows in order; where one fails, `{"failed": one line}` in its place, and what follows it of the same call is
    left out. `free` is called then, once nothing holds what that call had. What may not begin has failed."""
    for make in makes:
        if not may_begin():
            yield {FAILED: f"{_told(make)}: {NOT_BEGUN}"}
            continue
        try:
            yield from make()
        except Exception as error:  # of whatever is measured: the others are to be measured as well
            failed = f"{_told(make)}: {one_line(error)}"
        else:
            continue
        free()
        yield {FAILED: failed}


def one_line(error: BaseException) -> str:
    """Its kind and what it says: the first line of that, or the last where it has another process's traceback."""
    text = str(error).strip()
    lines = text.splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1 if _OF_TRACEBACK in text else 0].strip()}"[:_LONGEST]


def failures(rows: Iterable[Row]) -> list[str]:
    """Of those that could not be made. A row may tell beside its figures what of another side failed."""
    return [each[FAILED] for each in rows if each.keys() == {FAILED}]


def _told(make: MakeRows) -> str:
    """What was called, and with what."""
    if not isinstance(make, partial):
        return getattr(make, "__name__", repr(make))
    args = list(make.args)
    function = args.pop(0) if make.func is _single else make.func
    given = [*map(str, args), *(f"{name}={value}" for name, value in make.keywords.items())]
    return f"{function.__name__}({', '.join(given)})"
