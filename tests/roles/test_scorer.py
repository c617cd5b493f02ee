"""A scorer's passes: as full as they can be, or of one group each, so that what came together does not matter."""

import asyncio
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lone_worker import LoneWorker
from table_rows import new_row, row
from torch import Tensor

from headrace.experience.columns import read
from headrace.experience.leases import Consumer
from headrace.experience.sample import GroupKey
from headrace.experience.table import ExperienceTable
from headrace.models.packing import MicroBatch
from headrace.observe.waits import WaitMeter
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.scorer import ScoredColumns
from headrace.roles.context import RoleContext
from headrace.roles.model_return import ModelReturn
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.training.rows.packed_rows import RowToTrain
from headrace.training.rows.row_reader import RowReader
from headrace.training.scoring import Scoring


def passes(*, by_group: bool, max_tokens: int) -> list[list[int]]:
    """Lengths of the rows in each pass over two groups, of rows of 2, 3 and 4 tokens, that are ready together."""
    seen: list[list[int]] = []

    async def main() -> None:
        runtime = InlineRuntime()
        consumers = [Consumer("reference", frozenset({"tokens"})), Consumer("actor", frozenset({"reference"}))]
        table = ExperienceTable(consumers, capacity=4, lease_s=60.0, clock=runtime.clock)
        flow: Any = SimpleNamespace(is_finished=False)

        def score(micro: MicroBatch) -> Tensor:
            seen.append(micro.lengths)
            return micro.tokens.float()

        context = RoleContext(runtime, flow, table, WaitMeter(runtime.clock.now), lambda *_: None, 60.0)
        scored = ScoredColumns(
            context,
            name="reference",
            columns=("reference",),
            score=partial(context.compute, "reference", "scores", Scoring(RowReader(context.refs), score, "reference")),
            max_tokens=max_tokens,
            by_group=by_group,
        )
        role = ColumnRole(context, scored)
        beside = {"kept_sets": None, "temperatures": None}
        for position in (1, 0):
            key = GroupKey(0, position, 0)
            table.reserve(key)
            table.put(key, [new_row(key, {**beside, "tokens": np.full(n, n)}) for n in (2, 3, 4)])
        running = runtime.spawn(role.run(), "scorer")
        lease = await table.lease("actor", lambda ready: list(ready) if len(ready) == 6 else [], seconds=5, what=str)
        assert lease is not None
        for each in lease.rows:
            length = each.header.length
            assert read(table.refs, each, ["reference"])["reference"].tolist() == [float(length)] * length
        flow.is_finished = True
        table.wake_all()
        await running
        await runtime.close()

    asyncio.run(main())
    return seen


@pytest.mark.parametrize(
    ("by_group", "max_tokens", "expected"),
    [
        (False, 100, [[2, 3, 4, 2, 3, 4]]),
        (True, 100, [[2, 3, 4], [2, 3, 4]]),
        (True, 5, [[2, 3], [4], [2, 3], [4]]),
    ],
)
def test_rows_that_share_a_pass(by_group: bool, max_tokens: int, expected: list[list[int]]) -> None:
    assert passes(by_group=by_group, max_tokens=max_tokens) == expected


def test_what_earlier_passes_gave_is_let_go_where_a_later_one_fails() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        lost, given = Ref("elsewhere", 0, ("tokens",)), []

        async def score(rows: Sequence[RowToTrain]) -> list[tuple[Ref]]:
            if given:
                raise RefLost(lost)
            given.extend(runtime.refs.put({"reference": len(each)}) for each in rows)
            return [(ref,) for ref in given]

        context: Any = SimpleNamespace(runtime=runtime, refs=runtime.refs)
        scored = ScoredColumns(context, name="reference", columns=("reference",), score=score, max_tokens=8)
        columns = {"tokens": lost, "kept_sets": None, "temperatures": None}
        lease: Any = SimpleNamespace(rows=[row(place, columns, length=4) for place in range(3)])
        with pytest.raises(RefLost):
            await scored.compute(lease)
        assert len(given) == 2
        for ref in given:
            with pytest.raises(RefLost, match="the controller does not keep"):
                runtime.refs.get(ref)
        await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("died", ["between two passes", "while nobody asked it"])
def test_what_a_model_scored_before_it_was_made_anew_is_scored_again_with_the_version_of_the_batch(died: str) -> None:
    """It came back while nobody waited for it."""

    async def main() -> None:
        runtime = InlineRuntime()

        async def settled() -> None: ...

        returns: Any = SimpleNamespace(lives=0, settled=settled)
        done, given = list[str](), list[Ref]()

        class Follows:
            def forget(self) -> None:
                done.append("forgets")

            async def reach(self, number: int) -> None:
                done.append("takes")

        async def score(rows: Sequence[RowToTrain]) -> list[tuple[Ref]]:
            done.append("scores")
            given.extend(runtime.refs.put({"proximal": len(each)}) for each in rows)
            if died == "between two passes" and len(given) == 1:
                returns.lives += 1
            return [(ref,) for ref in given[-len(rows) :]]

        context: Any = SimpleNamespace(runtime=runtime, refs=runtime.refs, flow=SimpleNamespace(batch=0))
        follows: Any = Follows()
        scored = ScoredColumns(
            context,
            name="proximal",
            columns=("proximal",),
            score=score,
            max_tokens=4,
            follows=follows,
            returns=returns,
        )
        columns = {"tokens": runtime.refs.put({"tokens": 4}), "kept_sets": None, "temperatures": None}
        lease: Any = SimpleNamespace(rows=[row(place, columns, length=4) for place in range(2)])
        first = await scored.compute(lease)
        if died == "between two passes":
            assert done == ["takes", "scores", "scores", "forgets", "takes", "scores", "scores"]
            for ref in given[:2]:
                with pytest.raises(RefLost):
                    runtime.refs.get(ref)
        else:
            returns.lives += 1
            await scored.compute(lease)
            assert done == ["takes", "scores", "scores", "forgets", "takes", "scores", "scores"]
        assert list(first.columns["proximal"].values()) == (given[2:] if died == "between two passes" else given[:2])
        await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("asked", ["while it comes back", "before it is lost"])
def test_nothing_is_taken_of_a_model_that_answers_before_it_is_back(asked: str) -> None:
    """It is there again, and has no version: whoever brings it back still waits for what it takes them from."""

    async def main(runtime: VirtualRuntime) -> None:
        workers: Any = LoneWorker()
        returns = ModelReturn(workers, runtime.clock, workers.restart)
        made, is_supplied, free = asyncio.Event(), asyncio.Event(), asyncio.Event()
        done = list[str]()

        async def once_back() -> None:
            made.set()
            await is_supplied.wait()

        returns.once_back = once_back

        class Follows:
            def forget(self) -> None:
                done.append("forgets")

            async def reach(self, number: int) -> None:
                done.append("takes")

        async def score(rows: Sequence[RowToTrain]) -> list[tuple[str]]:
            done.append("scores")
            await free.wait()
            return [("a score",)] * len(rows)

        context: Any = SimpleNamespace(runtime=runtime, refs=runtime.refs, flow=SimpleNamespace(batch=0))
        named: dict[str, Any] = {"name": "proximal", "columns": ("proximal",), "score": score, "max_tokens": 4}
        follows: Any = Follows()
        scored = ScoredColumns(context, follows=follows, returns=returns, **named)
        columns = {"tokens": runtime.refs.put({"tokens": 4}), "kept_sets": None, "temperatures": None}
        lease: Any = SimpleNamespace(rows=[row(0, columns, length=4)])
        keeper = runtime.spawn(returns.run(), "return")
        await runtime.clock.sleep(10.0)
        if asked == "while it comes back":
            workers.lose()
            await made.wait()
            computing = runtime.spawn(scored.compute(lease), "proximal")
            await runtime.clock.sleep(1.0)
            expected = ["forgets", "takes", "scores"]
        else:
            computing = runtime.spawn(scored.compute(lease), "proximal")
            await runtime.clock.sleep(1.0)
            workers.lose()
            await made.wait()
            expected = ["takes", "scores", "forgets", "takes", "scores"]
        free.set()
        await runtime.clock.sleep(1.0)
        is_supplied.set()
        await computing
        assert done == expected
        keeper.cancel()

    run_virtually(main)
