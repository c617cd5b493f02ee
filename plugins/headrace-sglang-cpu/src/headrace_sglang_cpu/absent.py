"""What SGLang imports and a machine without CUDA has not: found by name, in this process.

`sgl_kernel` has no build for a CPU on the package index. Its names are there to be imported, and raise when they are
called; dense models call none of them on a CPU. `torchvision` of the index is built for CUDA, and registers shapes for
operators that only its CUDA library defines: they are declared before it is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

_KERNELS = "sgl_kernel"
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def provide() -> None:
    """Have both imported from here on. Where there are kernels, as of a build from source, they are used."""
    if importlib.util.find_spec(_KERNELS) is None:
        sys.meta_path.append(_Kernels())
    sys.meta_path.insert(0, _BeforeTorchvision())


class _Kernels(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name == _KERNELS else None

    def exec_module(self, module: ModuleType) -> None:
        def find(attribute: str) -> Callable[..., NoReturn]:
            if attribute.startswith("__"):
                raise AttributeError(attribute)

            def kernel(*args: Any, **kwargs: Any) -> NoReturn:
                raise NotImplementedError(f"{_KERNELS}.{attribute}: SGLang's kernels are not built for this machine")

            return kernel

        module.__getattr__ = find  # type: ignore[method-assign]


class _BeforeTorchvision(MetaPathFinder):
    """Finds nothing."""

    library: Any = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "torchvision" and self.library is None:
            import torch

            if not hasattr(torch.ops.torchvision, "nms"):
                self.library = torch.library.Library("torchvision", "DEF")
                for operator in _OPERATORS:
                    self.library.define(operator)
