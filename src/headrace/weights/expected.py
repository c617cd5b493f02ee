"""Which tensors a new version of the weights must bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from headrace.weights.plane import Manifest, WeightError


class WeightSchema:
    """Names and shapes of a model's parameters; names that only repeat one of them (tied weights) may come or not."""

    def __init__(self, model: Any) -> None:
        parameters = dict(model.named_parameters())
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._optional = frozenset(model.state_dict()) - frozenset(self._shapes)
        first = next(iter(parameters.values()))
        self._dtype, self._device = first.dtype, first.device

    def check(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The parameters in the model's dtype, on its device: each is brought there as it is asked for, so that whoever
        arranges them anew has no second copy of all. One that is so already is not copied.

        Raises WeightError if one is missing, extra or misshapen.
        """
        self._require({name: tuple(tensor.shape) for name, tensor in tensors.items()})
        return _Brought({name: tensors[name] for name in self._shapes}, self._device, self._dtype)

    def require_fits(self, manifest: Manifest) -> None:
        """That a publication has them. Raises WeightError, as `check`."""
        self._require({entry.name: entry.shape for entry in manifest.entries})

    def _require(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        missing = [name for name in self._shapes if name not in shapes]
        extra = [name for name in shapes if name not in self._shapes and name not in self._optional]
        if missing or extra:
            raise WeightError(
                f"the publication does not fit the model: {_some('lacks', missing)}{_some('adds', extra)}"
                "publish the parameters of the same model, by Hugging Face name"
            )
        for name, shape in self._shapes.items():
            if shapes[name] != shape:
                raise WeightError(
                    f"tensor {name!r} has shape {shapes[name]}, the model has {shape}; "
                    "publish the parameters of the same model"
                )


class _Brought(Mapping[str, torch.Tensor]):
    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self._tensors, self._device, self._dtype = tensors, device, dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach().to(self._device, self._dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _some(verb: str, names: list[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"it {verb} {len(names)} tensors ({shown}); "
