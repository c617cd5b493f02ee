"""What a plan checks and says before anything starts."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from controller_jobs import CONFIGS, make_job

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller import memory
from headrace.controller.describe import describe_plan
from headrace.controller.episodes import policy_settings
from headrace.controller.memory import estimate_memory, plan_kv_cache
from headrace.controller.plan import make_plan
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.models.loading import count_parameters
from headrace.runtime.inline import SystemClock

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
SLOT = 96 * 2 * 2 * 2 * 8
"""Numbers in a sequence's keys and values: context x (key, value) x layers x heads x head_dim."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with room for five sequences in bfloat16, in the half of it that a KV cache may take."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 5 * 2 * SLOT + 100, 10**12))


def test_memory_by_use_in_float32(job: Path) -> None:
    model = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    estimate = estimate_memory(load_config(TrainConfig, job), model, CPU)
    assert estimate.parameters == numbers
    assert estimate.uses == {
        "trainer: float32 weights": 4 * numbers,
        "trainer: gradients (float32)": 4 * numbers,
        "trainer: AdamW moments (float32)": 8 * numbers,
        "engine: weights": 4 * numbers,
        "engine: next version while it is received": 4 * numbers,
        "engine: KV cache": 8 * SLOT * 4,
        "weight plane: newest version": 4 * numbers,
    }
    assert estimate.total == 28 * numbers + 32 * SLOT
    assert estimate.place == "this host"


@pytest.mark.parametrize(("overrides", "tokens"), [
    ([], 8),
    (["rollout.workflow=multi_turn", "rollout.environment=e.py:E", "rollout.max_turns=3"], 24),
    (["rollout.workflow=multi_turn", "rollout.environment=e.py:E", "rollout.max_turns=99"], 96),
    (["rollout.workflow=w.py:W"], 96),
])  # fmt: skip
def test_kept_sets_are_counted(job: Path, overrides: list[str], tokens: int) -> None:
    """Of the groups that the table holds, 3 samples each; a set of 74 ids as a bitmap, and its count."""
    config = load_config(TrainConfig, job, ["rollout.sampling.top_p=0.9", *overrides])
    uses = estimate_memory(config, CONFIGS["qwen3"](), CPU).uses
    bitmap = math.ceil(CONFIGS["qwen3"]().vocab_size / 8)
    assert uses["experience table: kept sets, at most"] == config.table_groups(8) * 3 * tokens * (bitmap + 4)


def test_check_says_what_truncation_keeps(job: Path) -> None:
    said = describe_plan(make_plan(load_config(TrainConfig, job, ["rollout.sampling.top_p=0.9"])))
    assert "top_p 0.9, top_k 512: what these keep travels with each token" in said
    assert "experience table: kept sets, at most" in said


def test_an_engine_that_cannot_say_what_it_kept_is_refused(job: Path) -> None:
    class Forgetful(EmbeddedEngine):
        @property
        def gives_kept_sets(self) -> bool:
            return False

    plan = make_plan(load_config(TrainConfig, job, ["rollout.sampling.top_k=9"]))
    engine = Forgetful.__new__(Forgetful)
    with pytest.raises(ConfigError, match=r"top_p 1 and top_k 9, but the engine cannot say which tokens they keep"):
        policy_settings(plan, engine, SystemClock(), evaluation=False)
    assert not policy_settings(plan, engine, SystemClock(), evaluation=True).return_kept
    plain = make_plan(load_config(TrainConfig, job))
    policy_settings(plain, engine, SystemClock(), evaluation=False)


def test_memory_in_bfloat16_and_weights_by_disk(job: Path) -> None:
    model = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    config = load_config(TrainConfig, job, ["model.dtype=bfloat16", "weights.transport=disk"])
    uses = estimate_memory(config, model, CPU).uses
    assert uses["trainer: float32 weights"] == 4 * numbers
    assert uses["trainer: bfloat16 weights"] == uses["engine: weights"] == 2 * numbers
    assert uses["engine: KV cache"] == 8 * SLOT * 4, "on a CPU the cache is float32"
    assert "weight plane: newest version" not in uses


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_the_cache_has_the_engines_dtype_and_the_devices_memory(job: Path) -> None:
    config = load_config(TrainConfig, job, ["engine.dtype=bfloat16"])
    model = CONFIGS["qwen3"]()
    assert plan_kv_cache(model, config.engine, "bfloat16", CUDA).slots == 5
    assert plan_kv_cache(model, config.engine, "float32", CUDA).slots == 2
    estimate = estimate_memory(config, model, CUDA)
    assert estimate.uses["engine: KV cache"] == 5 * 2 * SLOT
    assert (estimate.place, estimate.free) == ("cuda:0", 20 * SLOT + 100)


def test_a_run_that_does_not_fit_is_told_so(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(load_config(TrainConfig, job))
    assert plan.memory.free == pytest.approx(memory.free_bytes(CPU), rel=0.5)
    assert "WARNING" not in describe_plan(plan)
    tight = replace(plan, memory=replace(plan.memory, free=plan.memory.total - 2**30))
    said = describe_plan(tight)
    assert "  WARNING: that is 1.00 GiB more than is free: free memory, lower engine.max_concurrent_sequences" in said


FULL = "5 groups run or wait at most: a batch of 2, and what 8 slots decode, 3 a group; never under 2 batches"


@pytest.mark.parametrize(("overrides", "ahead", "reached"), [
    ([], "5 groups run or wait at most", "2 by answers that take equally long, bound by max_staleness"),
    (["async.mode=sync"], "2 groups run or wait at most",
     "0 by answers that take equally long, bound by max_staleness"),
    (["async.max_staleness=8"], FULL, "4 by answers that take equally long, bound by the engine's slots"),
    (["async.max_staleness=8", "async.ahead=4"], "4 groups run or wait at most",
     "3 by answers that take equally long, bound by async.ahead"),
    (["async.max_staleness=8", "async.ahead=13"], "13 groups run or wait at most",
     "8 by answers that take equally long, bound by max_staleness"),
])  # fmt: skip
def test_the_staleness_that_is_reached_and_what_binds_it(
    job: Path, overrides: list[str], ahead: str, reached: str
) -> None:
    """Batches of 2 groups of 3 samples; 8 slots, which hold 3 groups."""
    said = describe_plan(make_plan(load_config(TrainConfig, job, overrides)))
    assert f"  ahead             {ahead}\n" in said
    assert f"  staleness reached {reached}\n" in said
    assert ("(8 only by groups that others overtake; async.ahead=13 would" in said) == ("max_staleness" not in reached)


def test_slots_are_those_that_the_memory_holds(job: Path) -> None:
    """24 are asked for, and the cache may have room for 12: a batch of 2 groups, and 4 of 3 samples."""
    overrides = ["async.max_staleness=8", "engine.max_concurrent_sequences=24"]
    wide = make_plan(load_config(TrainConfig, job, overrides))
    assert wide.memory.slots == 24
    assert wide.config.ahead(24) == 10
    narrow = make_plan(load_config(TrainConfig, job, [*overrides, f"engine.kv_cache_gib={12.5 * SLOT * 4 / 2**30}"]))
    assert narrow.memory.slots == 12
    assert "ahead             6 groups run or wait at most: a batch of 2, and what 12 slots" in describe_plan(narrow)


@pytest.mark.parametrize("device", ["gpu", "cpu:0", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(job: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' is .*use auto"):
        make_plan(load_config(TrainConfig, job, [f"model.device={device}"]))


def test_a_model_without_weights_is_refused(job: Path, tmp_path: Path) -> None:
    model = make_job(tmp_path).parent / "model"
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no weights \(\*\.safetensors\); copy them into it"):
        make_plan(load_config(TrainConfig, job, [f"model.path={model}"]))


def test_faults_of_the_data_are_told_before_torch_is_imported(job: Path) -> None:
    script = (
        "import sys\nfrom headrace.cli.main import main\n"
        f"code = main(['check', {str(job)!r}, 'data.train=nowhere.jsonl'])\n"
        "assert code == 2\nassert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        0,
        "headrace: no dataset at nowhere.jsonl; correct the path, which is relative to the working directory\n",
    )
