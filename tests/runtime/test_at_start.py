"""What is lost before a run is under way."""

from __future__ import annotations

import asyncio

import pytest

from headrace.runtime.at_start import anew_if_lost
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.workers import WorkerLost


@pytest.mark.parametrize(("most", "is_mended", "attempts"), [(2, True, 3), (3, True, 3), (1, False, 1)])
def test_another_attempt_is_made_twice_where_it_mends_anything(most: int, is_mended: bool, attempts: int) -> None:
    """Of one that is lost `most` times."""
    seen: list[int] = []

    async def attempt(losses: int) -> str:
        seen.append(losses)
        if losses < most:
            raise WorkerLost(0, "it was killed", worker="trainer/0")
        return "made"

    async def main() -> str:
        runtime = InlineRuntime()
        try:
            return await anew_if_lost(attempt, runtime.clock, lambda lost: is_mended)
        finally:
            await runtime.close()

    if is_mended and most < attempts:
        assert asyncio.run(main()) == "made"
    else:
        words = "it was killed \\(lost 3 times at its start\\)" if is_mended else "it was killed$"
        with pytest.raises(WorkerLost, match=words):
            asyncio.run(main())
    assert seen == [*range(attempts)]
