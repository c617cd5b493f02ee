"""The weights of a model that has none itself: they are read from its files, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headrace.models.parted_files import FileTensor, common_box
from headrace.models.stored_names import stored_tensors
from headrace.models.weight_files import files_of_tensors, read_headers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FileWeights:
    """Of one model. Nothing is kept of what was read."""

    def __init__(self, folder: Path, tensors: Sequence[FileTensor], device: torch.device, zero: Sequence[str]) -> None:
        """`device`: where it computes. `zero`: parameters that are in no file."""
        self.folder = folder
        self.device = device
        self._zero = frozenset(zero)
        self._files = files_of_tensors(folder)
        self._open: dict[Path, Any] = {}
        self._of: dict[str, list[FileTensor]] = {}
        """By parameter."""
        for tensor in tensors:
            self._of.setdefault(tensor.parameter, []).append(tensor)

    @classmethod
    def of(
        cls, folder: Path, model: PreTrainedModel, device: torch.device, *, head: Callable[[str], bool]
    ) -> FileWeights | None:
        """Of a `model` without memory. None where its files do not hold just its parameters, each in parts of its own;
        but for those of a `head`, which they may lack, or have of another kind."""
        tensors = stored_tensors(model, torch.float32)
        if tensors is None:
            return None
        wanted = {tensor.name: tensor.shape for tensor in tensors}
        there = {name: stored.shape for name, stored in read_headers(folder).items()}
        absent = [name for name in wanted if name not in there]
        if not all(head(name) for name in (*absent, *(there.keys() - wanted.keys()))):
            return None
        if any(there[name] != shape for name, shape in wanted.items() if name in there):
            return None
        lacking = set(absent)
        zero = [tensor.parameter for tensor in tensors if tensor.name in lacking]
        return cls(folder, [tensor for tensor in tensors if tensor.name not in lacking], device, zero)

    @torch.no_grad()
    def read(self, name: str, begin: Sequence[int], into: Tensor) -> None:
        """Fill `into` with the box of the parameter that begins there. Raises OSError, SafetensorError."""
        if name in self._zero:
            into.zero_()
        for tensor in self._of.get(name, ()):
            common = common_box(begin, into.shape, tensor.begin, tensor.box)
            if common is None:
                continue
            at = [slice(a - b, e - b) for (a, e), b in zip(common, tensor.begin, strict=True)]
            left_out = len(tensor.box) - len(tensor.shape)
            found = self._opened(tensor.name).get_slice(tensor.name)[tuple(_without_ones(at, tensor.box, left_out))]
            own = into[tuple(slice(a - b, e - b) for (a, e), b in zip(common, begin, strict=True))]
            own.copy_(found.reshape(own.shape))

    def _opened(self, name: str) -> Any:
        """The file of this tensor: its header, which may name many thousands, is read once."""
        from safetensors import safe_open

        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        return self._open[file]

    @contextmanager
    def lent(self, model: nn.Module) -> Iterator[None]:
        """Within the block each module has its parameters while it computes, and none else does."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        hooks: list[Any] = []

        def lend(module: nn.Module, own: Mapping[str, nn.Parameter]) -> None:
            def before(*_: object) -> None:
                for name, parameter in own.items():
                    whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.device)
                    self.read(names[id(parameter)], (0,) * whole.dim(), whole)
                    module._parameters[name] = nn.Parameter(whole, requires_grad=False)

            def after(*_: object) -> None:
                module._parameters.update(own)

            hooks.append(module.register_forward_pre_hook(before, prepend=True))
            hooks.append(module.register_forward_hook(after, always_call=True))

        for module in model.modules():
            own = {name: one for name, one in module.named_parameters(recurse=False) if one.is_meta}
            if own:
                lend(module, own)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _without_ones(at: Sequence[slice], box: Sequence[int], count: int) -> Iterator[slice]:
    """The first `count` lengths of 1 are not in the file."""
    for part, length in zip(at, box, strict=True):
        if length == 1 and count:
            count -= 1
            continue
        yield part
