"""What packages offer by name is there when it is first used, and not before."""

import subprocess
import sys
from importlib import import_module

import pytest

LAZY = ["headrace.config", "headrace.store"]


@pytest.mark.parametrize("package", LAZY)
def test_each_name_is_there(package: str) -> None:
    module = import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.parametrize("package", LAZY)
def test_a_name_that_is_none_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = import_module(package).nothing


def test_a_worker_that_plays_needs_no_config_of_another_command() -> None:
    named = "'headrace.config.train', 'headrace.config.sft', 'headrace.config.reading.load', 'headrace.store.run_store'"
    code = f"import sys, headrace.roles.workers.rollout; print(*sorted({{{named}}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == ["headrace.config.train"]
