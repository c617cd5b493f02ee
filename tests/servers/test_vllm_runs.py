"""Whole runs whose engine is vLLM, and what its death costs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from served_run import Run, begun, guardian_of, of_name, require_no_loss, server_of, worker_of
from vllm_server import PYTHON, needs_vllm

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
