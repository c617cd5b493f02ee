"""Root that becomes another user, with the rights of a container and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root of Linux becomes another user"
)

BECOMES = """
import json, os, sys
from headrace.sandbox import linux
linux.keep_capabilities(number for name, number in linux.ROOT_KEEPS.items() if name not in sys.argv[3:])
linux.keep_rights_when_becoming()
linux.become(54321, reads_all=True, or_writes_all=sys.argv[2] == "or")
try:
    read = open(sys.argv[1]).read()
except PermissionError:
    read = None
held = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapPrm", "CapEff", "CapAmb"))]
print(json.dumps([os.getresuid(), read, [int(mask, 16) for mask in held]]))
"""


NEITHER = ["CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"]


@pytest.mark.parametrize(
    ("lacks", "otherwise", "right"),
    [
        ([], "", 1 << 2),
        ([], "or", 1 << 2),
        (["CAP_DAC_READ_SEARCH"], "", 0),
        (["CAP_DAC_READ_SEARCH"], "or", 1 << 1),
        (NEITHER, "or", 0),
    ],
)
def test_it_reads_all_where_root_may_and_else_what_everybody_may(
    tmp_path: Path, lacks: list[str], otherwise: str, right: int
) -> None:
    """By hand: the right to read all is capability 2, that to write all, too, is 1. Containers leave the first out, as
    Docker does."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    line = [sys.executable, "-c", BECOMES, str(secret), otherwise, *lacks]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[54321] * 3, "x" if right else None, [right] * 3]
