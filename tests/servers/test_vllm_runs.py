"""Whole runs whose engine is vLLM, and what its death costs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from agent_runs import make_sampling_job, samples_of
from served_run import Run, begun, guardian_of, of_name, require_no_loss, server_of, worker_of
from vllm_server import PYTHON, needs_vllm

from headrace.cli.main import main
from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_vllm]
SERVER = "vllm.entrypoints.openai.api_server"
VICTIMS = {
    "core": lambda process: of_name(process, "EngineCore"),
    "server": lambda process: server_of(process, SERVER),
    "guardian": lambda process: guardian_of(process, SERVER),
    "worker": worker_of,
}


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS)
def test_its_death_costs_the_run_nothing(tmp_path: Path, victim: Callable[[Run], psutil.Process]) -> None:
    process, run = begun(
        tmp_path, engine__kind="vllm", engine__python=PYTHON, engine__args={"skip_tokenizer_init": True}
    )
    require_no_loss(process, run, victim)


def test_turns_of_an_agent_that_samples_in_ways_of_its_own_are_trained_as_they_were_sampled(tmp_path: Path) -> None:
    """One at temperature 0.6 under top-p, one at 1.5, one greedy. Were one taken for another, log-probs would be 0.1
    apart and more. Of a model with experts, whose new weights vLLM takes."""
    job = make_sampling_job(
        tmp_path / "job",
        "samples_in_three_ways",
        "qwen3_moe_wide",
        async__mode="sync",
        engine__kind="vllm",
        engine__python=PYTHON,
        engine__args={"skip_tokenizer_init": True},
        engine__start_deadline_s=240,
    )
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        reader.counts().check()
        batches = RunWatcher(reader).read().batches
    assert len(batches) == 3
    for batch in batches:
        assert batch.mismatch_max_abs is not None
        assert batch.mismatch_max_abs < 1e-4
        assert batch.kept_mass is not None
        assert 0 < batch.kept_mass < 1
    found = [sample for sample in samples_of(tmp_path / "run") if sample.temperatures is not None]
    trained = {float(at) for sample in found for at in sample.temperatures[sample.loss_mask]}
    assert trained == {float(np.float32(0.6)), 1.5}
