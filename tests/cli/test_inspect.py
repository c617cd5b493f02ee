"""What `headrace inspect` prints for programs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import observe_samples as samples
import pytest

from headrace.cli.main import main
from headrace.config import dump_config
from headrace.store import RunStore


def test_what_is_not_finite_is_printed_as_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    batch = samples.batch(0, loss=math.nan, grad_norm=math.inf, reward_mean=math.nan)
    store = RunStore.create(folder, config_yaml=dump_config(samples.config()), config_sha256="c0ffee", now=1000.0)
    store.checkpoints.record_version(0, 1, 0.0)
    store.metrics.write(0, 1, 0.0, batch.to_json())
    store.close()
    assert main(["inspect", str(folder), "--batches"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (told["loss"], told["grad_norm"], told["drift_max_abs"]) == (None, None, 0.3)
    assert main(["inspect", str(folder), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (summary["version"], summary["reward"]["last"], summary["drift"]["max_abs"]) == (1, None, 0.3)
