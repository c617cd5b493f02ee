"""What is given up half made leaves nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from runtime_worker_kinds import Spec

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process import channel as channels
from headrace.runtime.process.channel import Channel
from headrace.runtime.process.frames import Kind
from headrace.runtime.process.shared_memory import Segment, Segments
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import BASE_TYPES, Host, Placement, WorkerError


class HalfMade:
    kind: ClassVar[str] = "half"
    types: ClassVar[WireTypes] = WireTypes({"half_spec": Spec})
    put: ClassVar[list[Ref]] = []

    def __init__(self, spec: Spec, host: Host) -> None:
        self.put.append(host.put({"column": np.zeros(3)}))
        raise ValueError("no further")


def test_a_worker_that_cannot_be_made_keeps_no_refs() -> None:
    async def main() -> None:
        runtime = InlineRuntime(copying=True)
        try:
            with pytest.raises(WorkerError, match="no further"):
                await runtime.start(HalfMade, [Spec("a")], Placement())
            with pytest.raises(RefLost):
                await runtime.get(HalfMade.put.pop())
        finally:
            await runtime.close()

    asyncio.run(main())


def test_a_call_that_is_cancelled_while_a_large_value_is_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_LONG", 1 << 10)
    begun, go_on, write = threading.Event(), threading.Event(), Segments.write

    def slow(self: Segments, buffers: Any) -> Segment:
        begun.set()
        assert go_on.wait(20)
        return write(self, buffers)

    monkeypatch.setattr(Segments, "write", slow)

    async def main() -> None:
        segments = Segments(tmp_path / "mine")
        channel = Channel(cast(Any, None), cast(Any, None), BASE_TYPES, segments, tmp_path)
        sending = asyncio.create_task(channel.send(Kind.CALL, 0, [np.zeros(1 << 16)], "a value"))
        assert await asyncio.to_thread(begun.wait, 20)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        go_on.set()
        for _ in range(100):
            await asyncio.sleep(0.01)
        assert list((tmp_path / "mine").iterdir()) == []

    asyncio.run(main())
