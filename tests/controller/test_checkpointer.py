"""What a checkpoint holds beside the weights is of the same batch as they are."""

import asyncio
from pathlib import Path

from headrace.controller.checkpointer import Checkpointer
from headrace.runtime.inline import InlineRuntime
from headrace.store import RunStore
from headrace.weights.version import Version


class Saves:
    async def take_state(self, *, copies: bool) -> None:
        pass

    async def write_state(self, path: Path) -> None:
        (path / "weights").write_text("weights")

    async def load(self, path: Path) -> None:
        raise AssertionError("nothing is restored")


def test_the_state_is_that_of_the_trained_batch_and_not_of_the_one_that_has_begun(tmp_path: Path) -> None:
    state = {"kl_coefficient": 1.0}

    async def commit() -> None:
        store = RunStore.create(tmp_path / "run", config_yaml="", config_sha256="x", now=0.0)
        runtime = InlineRuntime()
        checkpointer = Checkpointer(store, Saves(), runtime, state=lambda: dict(state), every=1, committed=0)
        state["kl_coefficient"] = 2.0
        checkpointer.trained()
        state["kl_coefficient"] = 3.0  # advantages of the next batch
        await checkpointer.after(Version(0, 1))
        await runtime.close()
        store.close()

    asyncio.run(commit())
    store = RunStore.open(tmp_path / "run", config_sha256="x")
    restored = store.checkpoints.restore()
    store.close()
    assert (restored.number, restored.state) == (1, {"kl_coefficient": 2.0})
