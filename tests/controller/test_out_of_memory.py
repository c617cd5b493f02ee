"""Memory that runs out while a run is on its way."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import make_job
from engines_helpers import tiny_model

from headrace.cli.main import main
from headrace.config import SFTConfig, TrainConfig, load_config
from headrace.controller import serve
from headrace.controller.planning.out_of_memory import OutOfMemory, told, what_to_lower
from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.cache_plan import CachePlan, cache_shape
from headrace.engines.embedded.core import EngineCore
from headrace.engines.embedded.runners import choice
from headrace.engines.protocol import EngineError
from headrace.models import loading
from headrace.runtime.workers import WorkerError
from headrace.training.trainer import HFTrainer

OF_TORCH = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.19 GiB of which 1.25 GiB is "
    "free. Including non-PyTorch memory, this process has 77.93 GiB memory in use."
)
LOWER = "lower trainer.max_tokens_per_microbatch (4096)"


def fails_at(kind: type, name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method runs out of memory from its call of that number on."""
    calls = 0
    own = getattr(kind, name)

    def method(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise torch.OutOfMemoryError(OF_TORCH)
        return own(self, *args)

    monkeypatch.setattr(kind, name, method)


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize(("kind", "name", "call"), [(HFTrainer, "accumulate", 4), (EngineCore, "step", 4)])
def test_a_run_ends_with_what_to_lower_and_goes_on_with_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type,
    name: str,
    call: int,
) -> None:
    job, run = make_job(tmp_path, checkpoint={"every": 1}), tmp_path / "run"
    with monkeypatch.context() as patch:
        fails_at(kind, name, call, patch)
        assert main(["train", str(job), "--dir", str(run), "--plain"]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("headrace:")]
    whose = " (the engine died)" if kind is EngineCore else ""
    assert said == (
        f"headrace: memory ran out on cuda:1, with 2.50 GiB more asked for{whose}; lower "
        "trainer.max_tokens_per_microbatch (4096), engine.max_concurrent_sequences (8) or "
        "engine.prefill_tokens_per_step (1024), set model.gradient_checkpointing=true and "
        "trainer.optimizer.offload=true, and go on with --resume: what was journalled and checkpointed is there"
    )
    lowered = [
        "trainer.max_tokens_per_microbatch=64",
        "engine.max_concurrent_sequences=4",
        "model.gradient_checkpointing=true",
        "trainer.optimizer.offload=true",
    ]
    assert main(["train", str(job), "--dir", str(run), "--plain", "--resume", *lowered]) == 0
    assert json.loads((run / "summary.json").read_text())["version"] == 6


def test_offline_trainers_say_so_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_job(tmp_path)
    (tmp_path / "demos.jsonl").write_text('{"prompt": "1+1=", "response": "2"}\n' * 8)
    config = tmp_path / "sft.yaml"
    config.write_text(
        f"model: {{path: {tmp_path}/model}}\ndata: {{train: {tmp_path}/demos.jsonl}}\ntrainer: {{steps: 4}}\n"
    )
    with monkeypatch.context() as patch:
        fails_at(HFTrainer, "accumulate", 2, patch)
        assert main(["sft", str(config), "--dir", str(tmp_path / "out")]) == 1
    assert f"headrace: memory ran out on cuda:1, with 2.50 GiB more asked for; {LOWER}, set" in capsys.readouterr().err


def test_eval_says_so_too_of_what_its_engine_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path)
    fails_at(EngineCore, "_cache_of", 1, monkeypatch)
    assert main(["eval", str(job)]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("headrace:")]
    assert said == (
        "headrace: memory ran out on cuda:1, with 2.50 GiB more asked for; lower engine.max_concurrent_sequences (8) "
        "or engine.prefill_tokens_per_step (1024)"
    )


def test_serve_says_so_by_its_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def serve_model(*args: Any, **kwargs: Any) -> None:
        raise EngineError("the engine died") from torch.OutOfMemoryError(OF_TORCH)

    monkeypatch.setattr(serve, "serve_model", serve_model)
    assert main(["serve", "model", "--max-concurrent-sequences", "32"]) == 1
    assert capsys.readouterr().err == (
        "headrace: memory ran out on cuda:1, with 2.50 GiB more asked for; lower --max-concurrent-sequences (32) or "
        "--max-context (the model's)\n"
    )


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (MemoryError(), ""),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ""),
        (MemoryError("Unable to allocate 8.00 EiB for an array"), ", with 8.00 EiB more asked for"),
        (WorkerError(0, "MemoryError", ""), ""),
        (WorkerError(0, "_ArrayMemoryError", "Unable to allocate 2. TiB"), ", with 2. TiB more asked for"),
    ],
)
def test_the_machines_memory_that_runs_out_in_python_or_numpy_is_told_alike(error: Exception, asked: str) -> None:
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}})
    with pytest.raises(OutOfMemory) as told_of, told(config, resumes=False):
        raise error
    assert str(told_of.value) == f"memory ran out{asked}; {LOWER}, set model.gradient_checkpointing=true"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(OF_TORCH), MemoryError()])
def test_memory_that_runs_out_while_a_model_is_read_or_tried_is_no_fault_of_the_model(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> Any:
        raise error

    with pytest.raises(type(error)):
        loading._read("a/model", "weights", fails)
    if isinstance(error, RuntimeError):
        model = tiny_model("qwen3").eval()
        cache = KeyValueCache(cache_shape(model.config), CachePlan(2, 16, 0), torch.float32, torch.device("cpu"))
        monkeypatch.setattr(choice.FusedRunner, "of", lambda *args: None)
        monkeypatch.setattr(choice, "_error", fails)
        with pytest.raises(torch.OutOfMemoryError):
            choice.choose_runner(model, cache)


def of_the_cpu() -> None:
    """What the CPU's allocator raises, behind what it led to."""
    try:
        torch.empty(2**60)
    except RuntimeError as error:
        raise ValueError("the request was lost") from error


def test_an_error_that_memory_led_to_is_told_as_such_and_others_pass(tmp_path: Path) -> None:
    config = load_config(TrainConfig, make_job(tmp_path))
    with (
        pytest.raises(OutOfMemory, match=r"memory ran out, with \d+ bytes more .* and checkpoint.background=false$"),
        told(config, resumes=False),
    ):
        of_the_cpu()
    with pytest.raises(ValueError, match="something else"), told(config):
        raise ValueError("something else")


OF_CUDA = [
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "CUDA driver error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "Triton Error [CUDA]: out of memory",
    "NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
]
"""What others than torch's allocator say of a device without memory."""


def of_a_worker(text: str) -> WorkerError:
    return WorkerError(0, "AcceleratorError", text, worker="trainer/0")


@pytest.mark.parametrize("kind", [RuntimeError, getattr(torch, "AcceleratorError", RuntimeError), of_a_worker])
@pytest.mark.parametrize("text", OF_CUDA)
def test_other_errors_of_a_device_without_memory_are_told_alike(text: str, kind: Callable[[str], Exception]) -> None:
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}})
    with pytest.raises(OutOfMemory) as told_of, told(config, resumes=False):
        raise kind(text)
    assert str(told_of.value) == (
        "memory ran out on a CUDA device; lower trainer.max_tokens_per_microbatch (4096), set "
        "model.gradient_checkpointing=true and trainer.optimizer.offload=true"
    )


def test_an_error_whose_words_crossed_a_process_says_which_device_it_was() -> None:
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}})
    with (
        pytest.raises(OutOfMemory, match=r"^memory ran out on cuda:1, with 2.50 GiB more asked for; lower"),
        told(config),
    ):
        raise WorkerError(0, "EngineError", f"there is no room for its KV cache: {OF_TORCH}")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "Triton Error [CUDA]: invalid argument",
        "Cuda failure 1 'invalid argument'",
    ],
)
def test_other_faults_of_a_device_pass(text: str) -> None:
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}})
    with pytest.raises(RuntimeError) as raised, told(config):
        raise RuntimeError(text)
    assert str(raised.value) == text


def test_only_keys_that_the_command_has_are_named() -> None:
    model = {"path": "m", "gradient_checkpointing": True}
    sft = SFTConfig.model_validate({"model": model, "data": {"train": "d"}})
    assert what_to_lower(sft) == "lower trainer.max_tokens_per_microbatch (4096)"
    ppo = TrainConfig.model_validate({"model": model, "data": {"train": "d"}, "algorithm": {"recipe": "ppo"}})
    assert "critic.max_tokens_per_microbatch (4096)" in what_to_lower(ppo)
