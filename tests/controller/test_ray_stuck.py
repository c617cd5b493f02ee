"""A run with Ray, of which actors are stopped in the midst of their work: each lives, and does nothing any more."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from ray_run import actor, begun, lives, require_whole
from served_run import until_batch, until_event

from headrace.store import RunReader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
]
_WAIT_S = 200.0
_STANDS_S = 8
"""For which an event loop may stand."""
_BATCHES = 40


def test_actors_that_are_stopped_are_named_and_made_anew_and_cost_the_run_nothing(tmp_path: Path) -> None:
    """The only engine, without which no batch comes; then one of two ranks, for which the other waits in each step."""
    overrides = [f"runtime.stuck.event_loop_s={_STANDS_S}", "rollout.workers=1"]
    process, run = begun(tmp_path, *overrides, batches=_BATCHES, trainer__layout="d2")
    stopped: list[psutil.Process] = []
    try:
        for victim, back in (("engine-0", "engine_back"), ("trainer-1", "trainer_healed")):
            until_batch(run, batches_of(run) + 2, process)
            stopped.append(actor(process, run, victim))
            stopped[-1].suspend()
            until_event(run, back, process)
        assert not [each for each in stopped if lives(each)]
        out, _ = process.communicate(timeout=_WAIT_S)
    finally:
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
    assert process.returncode == 0, out[-3000:]
    kinds = require_whole(run, _BATCHES)
    told = ("engine_died", "engine_back", "trainer_lost", "trainer_healed", "went_back")
    assert [kinds[each] for each in told] == [1, 1, 1, 1, 0], kinds
    with RunReader(run) as reader:
        said = {event.kind: event.data.get("message", "") for event in reader.events.read()}
    for kind, name in (("engine_died", "engine/0"), ("trainer_lost", "trainer/1")):
        assert f"{name} is lost: its event loop has not turned for " in said[kind]
        assert f"s, of which {_STANDS_S} are allowed (runtime.stuck.event_loop_s)" in said[kind]


def batches_of(run: Path) -> int:
    if not (run / "run.db").exists():
        return 0
    with RunReader(run) as reader:
        return len([*reader.metrics.read("batch")])
