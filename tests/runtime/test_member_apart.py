"""A worker elsewhere, in its lives."""

from __future__ import annotations

import asyncio

import pytest

from headrace.runtime.local.member_apart import Asking, MemberApart
from headrace.runtime.wire.wire_types import WireError
from headrace.runtime.workers import Placement


class Unmade(MemberApart):
    """What beginning it raises, a test says."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("engine/0", 0, None, Placement(), closes=False)
        self._error = error

    async def _begin(self) -> Asking:
        raise self._error

    def _kill(self) -> None:
        pass

    async def _has_left(self, seconds: float) -> None:
        pass

    async def _cleared(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (asyncio.CancelledError(), "CancelledError"),
        (KeyError("device"), "KeyError: 'device'"),
        (WireError("a lambda cannot be sent"), "a lambda cannot be sent"),
    ],
)
def test_why_it_could_not_be_made_is_told_by_kind(error: BaseException, told: str) -> None:
    member = Unmade(error)
    with pytest.raises(type(error)):
        asyncio.run(member.start())
    assert member.lost == f"it could not be made: {told}"
