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
linux.keep_capabilities(number for name, number in linux.ROOT_KEEPS.items() if name not in sys.argv[2:])
linux.keep_rights_when_becoming()
linux.become(54321, reads_all=True)
try:
    read = open(sys.argv[1]).read()
except PermissionError:
    read = None
held = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapPrm", "CapEff", "CapAmb"))]
print(json.dumps([os.getresuid(), read, [int(mask, 16) for mask in held]]))
"""


@pytest.mark.parametrize("lacks", [[], ["CAP_DAC_READ_SEARCH"]])
def test_it_reads_all_where_root_may_and_else_what_everybody_may(tmp_path: Path, lacks: list[str]) -> None:
    """By hand: the right to read all is capability 2. Containers leave it out, as Docker does."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    line = [sys.executable, "-c", BECOMES, str(secret), *lacks]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    found = [None, [0, 0, 0]] if lacks else ["x", [4, 4, 4]]
    assert json.loads(done.stdout) == [[54321] * 3, *found]
