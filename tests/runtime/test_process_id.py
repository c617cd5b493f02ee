"""Which process a number is of."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from headrace.runtime.process.process_id import ProcessId

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def test_a_process_is_known_by_when_it_began_and_no_other_is_killed() -> None:
    own = ProcessId.own()
    assert own is not None
    assert own.pid == os.getpid()
    since_boot = psutil.Process().create_time() - psutil.boot_time()
    assert own.began / os.sysconf("SC_CLK_TCK") == pytest.approx(since_boot, abs=2)
    assert own.is_there

    with subprocess.Popen(["sleep", "60"]) as child:
        found = next(
            each for began in range(own.began, own.began + 10**6) if (each := ProcessId(child.pid, began)).is_there
        )
        replace(found, began=found.began - 1).kill()
        assert child.poll() is None
        found.kill()
        assert child.wait(10) == -9
    assert not found.is_there
    found.kill()
