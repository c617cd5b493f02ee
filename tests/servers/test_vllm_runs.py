"""Whole runs whose engine is vLLM, and what its death costs them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kept_keys
import numpy as np
import psutil
import pytest
from agent_runs import make_sampling_job, samples_of
from ray_run import actor, gone
from served_run import (
    Run,
    begun,
    below,
    ended_well,
    guardian_of,
    of_name,
    require_no_loss,
    server_of,
    until_batch,
    worker_of,
)
from vllm_server import PYTHON, needs_vllm

from headrace.cli.main import main
from headrace.config.values.hosts import is_loopback
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


@pytest.mark.parametrize(
    "victim",
    [pytest.param(one, marks=() if name == "core" else pytest.mark.soak) for name, one in VICTIMS.items()],
    ids=VICTIMS,
)
def test_its_death_costs_the_run_nothing(tmp_path: Path, victim: Callable[[Run], psutil.Process]) -> None:
    """Nor does it make the versions of tokens that a swap kept less certain."""
    process, run = begun(
        tmp_path,
        engine__kind="vllm",
        engine__python=PYTHON,
        engine__args={"skip_tokenizer_init": True},
        **kept_keys.SETTINGS,
    )
    require_no_loss(process, run, victim)
    kept_keys.require_versions_agree(run, tmp_path / "job" / "model")


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


@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'")
def test_in_ray_its_worker_is_an_actor_beside_it_and_nobody_else_asks_it(tmp_path: Path) -> None:
    """It listens on loopback alone; who plays, in another actor, has its tokens through the runtime."""
    process, run = begun(
        tmp_path,
        runtime__kind="ray",
        rollout__workers=1,
        engine__kind="vllm",
        engine__python=PYTHON,
        engine__args={"skip_tokenizer_init": True},
    )
    try:
        until_batch(run, 1, process)
        worker, plays = (actor(process, run, name) for name in ("engine-0", "rollout-0"))
        parents = [each.parent() for each in (worker, plays)]
        assert [each and each.name() for each in parents] == ["raylet", "raylet"]
        processes = worker.children(recursive=True)
        assert {server_of(process, SERVER), of_name(process, "EngineCore")} <= {*processes}
        places = [each.laddr for _, each in connections(processes) if each.status == psutil.CONN_LISTEN]
        assert places
        assert all(is_loopback(place.ip) for place in places)
        ports, asks, end = {place.port for place in places}, set[int](), time.monotonic() + 10
        while worker.pid not in asks and time.monotonic() < end:  # its health, each second
            others = [each for each in below(process) if each not in processes]
            asks |= {one.pid for one, each in connections(others) if each.raddr and each.raddr.port in ports}
        assert asks == {worker.pid}
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    ended_well(process, run, out)
    assert not gone(processes, 10.0)


def connections(processes: Iterable[psutil.Process]) -> Iterator[tuple[psutil.Process, Any]]:
    """Over TCP, of those that are there."""
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            for each in one.net_connections("tcp"):
                yield one, each
