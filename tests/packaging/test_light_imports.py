"""What is imported before a model is at hand imports torch and transformers only when it needs them.

What may not import them at all is held by contracts (`[tool.importlinter]` in pyproject.toml).
"""

import subprocess
import sys

LAZY = (
    "headrace",
    "headrace.api.evaluation",
    "headrace.api.offline",
    "headrace.api.run",
    "headrace.api.serving",
    "headrace.api.training",
    "headrace.cli.main",
    "headrace.controller.planning.origin",
    "headrace.controller.planning.plan",
    "headrace.controller.planning.replay",
    "headrace.controller.building.threads",
    "headrace.models.folder",
    "headrace.models.loading",
    "headrace.roles.rollout_workers",
    "headrace.roles.workers.rollout",
    "headrace.runtime.process.boot",
)


def test_torch_and_transformers_are_imported_when_they_are_needed() -> None:
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, *LAZY], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
