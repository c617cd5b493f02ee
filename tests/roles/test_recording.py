"""Recording holds what it has of a batch until all is there, and gives it back if it is told to stop before."""

from __future__ import annotations

from typing import Any

from role_house import LONG_S, STALL_S, House, all_is_gone, try_role

from headrace.experience.loader import StreamingLoader
from headrace.roles.actors.trained_step import TrainedStep
from headrace.roles.recording import NAME, RecordingRole
from headrace.weights.version import Lineage


class Recording:
    def __init__(self) -> None:
        self.done: list[TrainedStep] = []
        self.role: RecordingRole | None = None
        self.read: list[list[int]] = []

    def make(self, house: House) -> RecordingRole:
        async def after(step: TrainedStep) -> None:
            """Who records the batch reads its rows, which nobody else holds any more."""
            await house.written("reward")
            self.read = [house.table.refs.get(row.row.columns["metadata"])["tokens"].tolist() for row in step.rows]
            self.done.append(step)

        flow: Any = house.flow
        loader = StreamingLoader(house.table, flow, consumer=NAME, max_tokens=6, streaming=True, timeout_s=STALL_S)
        self.role = RecordingRole(house.context, loader, Lineage(0, {0: 2**62}), after)
        return self.role


def test_a_batch_whose_rows_come_late_is_recorded_whole_and_once() -> None:
    recording = Recording()

    async def body(house: House) -> None:
        house.table.write(house.ids[:2], "batch", [0, 0])
        await house.runtime.clock.sleep(LONG_S)
        house.table.wake_all()
        assert house.table.try_lease(NAME, list) is None  # what came first is held
        house.table.write(house.ids[2:], "batch", [0, 0])
        await house.settle()
        (step,) = recording.done
        assert (step.batch, step.stats.samples, step.only_recorded) == (0, 4, True)
        assert house.flow.batch == 1
        await all_is_gone(house)
        assert recording.read == [[0, 1, 2]] * 4

    try_role(NAME, ["reward", "batch"], ["reward"], recording.make, body)


def test_told_to_stop_it_gives_back_what_it_has() -> None:
    recording = Recording()

    async def body(house: House) -> None:
        house.table.write(house.ids[:2], "batch", [0, 0])
        await house.settle()
        assert recording.role is not None
        recording.role.stop()
        await house.settle()
        assert house.flow.batch == 0
        lease = house.table.try_lease(NAME, list)
        assert lease is not None
        assert len(lease.rows) == 2

    try_role(NAME, ["reward", "batch"], ["reward"], recording.make, body)
    assert recording.done == []
