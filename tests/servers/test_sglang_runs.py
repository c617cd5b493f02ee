"""Whole runs whose engine is SGLang, and what its death costs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import kept_keys
import psutil
import pytest
from agent_runs import agent_settings, samples_of, turns_of
from served_run import ETA, Run, begun, ended_well, guardian_of, of_name, require_no_loss, server_of
from sglang_server import PYTHON, needs_sglang

from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_sglang]
SERVER = "headrace_sglang_cpu.server"
VICTIMS = {
    "scheduler": lambda process: of_name(process, "sglang::scheduler"),
    "server": lambda process: server_of(process, SERVER),
    "guardian": lambda process: guardian_of(process, SERVER),
}


@pytest.mark.parametrize(
    "victim",
    [pytest.param(one, marks=() if name == "scheduler" else pytest.mark.soak) for name, one in VICTIMS.items()],
    ids=VICTIMS,
)
def test_its_death_costs_the_run_nothing(tmp_path: Path, victim: Callable[[Run], psutil.Process]) -> None:
    """An agent plays, of two turns: they are trained as they were sampled, also those that another server went on
    from."""
    agent = agent_settings(tmp_path / "job", "two_turns")
    process, run = begun(tmp_path, engine__kind="sglang", engine__python=PYTHON, record__journal="all", **agent)
    require_no_loss(process, run, victim)
    with RunReader(run) as reader:
        gaps = [batch.mismatch_max_abs for batch in RunWatcher(reader).read().batches]
    assert 0.0 < max(gap for gap in gaps if gap is not None) < 1e-4
    assert {turns_of(sample) for sample in samples_of(run)} == {1, 2}


def test_tokens_that_a_swap_kept_are_of_the_versions_that_they_are_said_to_be_of(tmp_path: Path) -> None:
    process, run = begun(
        tmp_path, engine__kind="sglang", engine__python=PYTHON, trainer__batches=8, **kept_keys.SETTINGS
    )
    try:
        out, _ = process.communicate(timeout=290.0)
    finally:
        process.kill()
    records = ended_well(process, run, out)
    assert len(records) == 8
    assert max(int(stale) for record in records for stale in record["staleness"]) <= ETA
    kept_keys.require_versions_agree(run, tmp_path / "job" / "model")
