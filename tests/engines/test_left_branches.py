"""After a return to a commit: no engine of the branch that was left serves, what asked before is served from where the
run goes on, and what an engine says of its tokens is looked at.

Each line holds by itself. In whole runs the others hide what one of them lets through, so the bugs are planted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from planted_bugs import HIDDEN
from rollout_helpers import ScriptedEngine, chunk

from headrace.engines.completions import Asked, Completion, complete
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError, FinishReason, SamplingParams, TokenChunk
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.version import Lineage, Version

LEFT, BACK = Version(0, 7), Version(1, 5)
"""The run was at the first when it went back to the second."""


def returned() -> Lineage:
    line = Lineage(0, {})
    line.go_back(BACK, {0: 5})
    return line


def tokens_of(*versions: Version) -> TokenChunk:
    """The last chunk of a completion, a token of each."""
    return replace(
        chunk(range(2, 2 + len(versions)), FinishReason.LENGTH),
        versions=np.array([version.number for version in versions], np.int32),
        branches=np.array([version.branch for version in versions], np.int32),
    )


def engine(version: Version, *says: Version) -> ScriptedEngine:
    """Gives two tokens, and says that these versions sampled them; its own unless given."""
    return ScriptedEngine(lambda _: tokens_of(*(says or (version, version))), version=version)


def completed(line: Lineage, minimum: Version, *engines: ScriptedEngine) -> tuple[Completion, float]:
    """Two tokens that are asked of a pool, and how long they took in seconds."""

    async def main(runtime: VirtualRuntime) -> tuple[Completion, float]:
        pool = EnginePool.of(engines, runtime.clock)  # type: ignore[arg-type]
        pool.line, pool.return_deadline_s = line, 600.0
        asked = Asked("a", np.array([3], np.int32), SamplingParams(2), noise_key=5, minimum=minimum)
        return await complete(pool, asked), runtime.clock.now()

    return run_virtually(main)


def test_a_request_goes_to_no_engine_of_the_branch_that_was_left() -> None:
    """Of two that are idle, the first is passed over, though its number is the greater."""
    left, present = engine(LEFT), engine(BACK)
    completion, _ = completed(returned(), BACK, left, present)
    assert completion.branches.tolist() == [1, 1]
    assert left.requests == []


def test_what_asked_before_the_run_went_back_is_served_at_once_from_where_it_goes_on() -> None:
    present = engine(BACK)
    completion, seconds = completed(returned(), LEFT, present)
    assert (completion.versions.tolist(), completion.branches.tolist()) == ([5, 5], [1, 1])
    assert seconds == 0.0


@pytest.mark.parametrize(
    ("says", "named"),
    [
        ((Version(1, 7), Version(1, 7)), "v7~1"),  # too old
        ((Version(1, 8), Version(1, 7)), "v7~1"),
        ((Version(1, 10), Version(1, 10)), "v10~1"),  # taken back
        ((Version(0, 8), Version(2, 10)), "v8"),
        ((Version(3, 10), Version(3, 10)), "v10~3"),  # of no branch of this run
    ],
)
def test_tokens_of_a_version_that_is_too_old_or_none_of_the_line_fail_the_request(
    says: tuple[Version, ...], named: str
) -> None:
    """Branch 2 went on from version 9 of branch 1, and that from version 7 of branch 0."""
    line = Lineage(2, {0: 7, 1: 9})
    with pytest.raises(EngineError, match=rf"asked for v8~1, but was served by {named}$"):
        completed(line, Version(1, 8), engine(Version(2, 10), *says))


def test_tokens_of_every_version_of_the_line_that_is_new_enough_are_taken() -> None:
    says = Version(1, 9), Version(2, 10)
    completion, _ = completed(Lineage(2, {0: 7, 1: 9}), Version(1, 8), engine(Version(2, 10), *says))
    assert completion.versions.tolist() == [9, 10]


FOUND_BY: dict[str, Callable[[], None]] = {
    "an_engine_of_a_left_branch_serves": test_a_request_goes_to_no_engine_of_the_branch_that_was_left,
    "a_floor_that_was_taken_back_stands": (
        test_what_asked_before_the_run_went_back_is_served_at_once_from_where_it_goes_on
    ),
    "tokens_of_any_version_are_taken": lambda: (
        test_tokens_of_a_version_that_is_too_old_or_none_of_the_line_fail_the_request(
            (Version(1, 7), Version(1, 7)), "v7~1"
        )
    ),
}


def test_each_hidden_bug_is_looked_for() -> None:
    assert set(FOUND_BY) == set(HIDDEN)


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    HIDDEN[name](monkeypatch)
    with pytest.raises((AssertionError, EngineError, pytest.fail.Exception)):
        FOUND_BY[name]()
