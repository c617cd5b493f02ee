"""`python -m headrace_sglang_cpu.server OPTIONS`, as `python -m sglang.launch_server OPTIONS`.

The processes that SGLang spawns import this module as their main one, and so have what is absent as well.
"""

from __future__ import annotations

import os
import runpy

from headrace_sglang_cpu.absent import provide

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
provide()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
