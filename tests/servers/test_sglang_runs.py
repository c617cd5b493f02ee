"""Whole runs whose engine is SGLang, and what its death costs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from served_run import Run, begun, guardian_of, of_name, require_no_loss, server_of
from sglang_server import PYTHON, needs_sglang

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
    process, run = begun(tmp_path, engine__kind="sglang", engine__python=PYTHON)
    require_no_loss(process, run, victim)
