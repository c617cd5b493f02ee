"""Run by a test: all kernels of the package and the functions that they call, and which constants of theirs Triton
would take for changed at every launch. Prints JSON."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent


def decorated(path: Path) -> list[str]:
    """Names of what `@triton.jit` makes there."""
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(each) for each in node.decorator_list)
    ]


def main() -> None:
    found, changed = [], []
    for path in sorted(SOURCE.rglob("*.py")):
        if "triton.jit" not in path.read_text():
            continue
        module = importlib.import_module(".".join(("headrace", *path.relative_to(SOURCE).with_suffix("").parts)))
        for name in decorated(path):
            kernel = getattr(module, name)
            assert kernel.cache_key  # with it the constants are copied, as at the first launch
            found.append(name)
            # As `JITFunction.run` compares them.
            changed += [
                f"{name}: {constant}"
                for (constant, _), (copied, variables) in kernel.used_global_vals.items()
                if variables.get(constant) != copied
            ]
    sys.stdout.write(json.dumps({"found": found, "changed": changed}) + "\n")


if __name__ == "__main__":
    main()
