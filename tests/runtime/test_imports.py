"""Imports that are made beside a wait: done afterwards, never in the way of an error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.runtime.imports import imported_beside

CODE = """
import sys
from headrace.runtime.imports import imported_beside
with imported_beside(("no_such_module", "colorsys")):
    pass
assert "colorsys" in sys.modules
"""


def test_they_are_there_once_it_is_left_and_one_that_is_missing_says_nothing() -> None:
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert (out.returncode, out.stderr) == (0, "")


def test_an_error_inside_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), imported_beside(("json",)):
        raise ZeroDivisionError
