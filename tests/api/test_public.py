"""What `headrace` names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace


def test_the_import_brings_neither_torch_nor_any_other_package() -> None:
    code = "import sys; before = set(sys.modules); import headrace; print(*(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    others = {name for name in out if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others == {"headrace", "headrace.lazy_names"}


def test_a_config_and_a_run_can_be_named_without_torch() -> None:
    code = "import sys, headrace; headrace.train, headrace.Run, headrace.TrainConfig; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "False\n"


def test_the_stub_names_what_can_be_had() -> None:
    stub = ast.parse(Path(headrace.__file__).with_suffix(".pyi").read_text())
    modules = {
        alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert modules == headrace._PUBLIC  # type: ignore[attr-defined]
    assert set(headrace.__all__) == {"__version__", *modules}
    for name in modules:
        assert getattr(headrace, name).__name__ == name
    assert set(dir(headrace)) == set(headrace.__all__)
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'trian'"):
        headrace.trian  # type: ignore[attr-defined]  # noqa: B018
