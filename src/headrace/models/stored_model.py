"""A model's folder in Hugging Face format, which ranks write together: each the parts of its parameters that it has."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from headrace.config.values.dtypes import dtype_name
from headrace.models.parted_files import Box, PartedFiles
from headrace.models.stored_names import others, stored_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NAME = "model.safetensors"
_LIMIT = 5_000_000_000
"""Bytes of a file, as models on the Hub commonly have them."""


class StoredModel:
    """What `save_pretrained` would write, but for the number of files. On any thread, beside whoever trains."""

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        trained: Collection[str],
        *,
        limit: int = _LIMIT,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Of a whole `model`, in `dtype`; it has memory, but perhaps for its `trained` parameters, whose parts are to
        be written. Raises NotInParts for one whose files hold no parts of its parameters. `limit`: bytes of tensors in
        a file. `names`: what whoever writes parts calls a parameter, where that is not as `model` does."""
        tensors, more = stored_tensors(model, dtype), others(model, trained)
        if tensors is None or any(tensor.is_meta for tensor in more.values()):
            raise NotInParts
        told = [replace(one, parameter=names.get(one.parameter, one.parameter)) for one in tensors]
        self._files = PartedFiles(told, _NAME, limit=limit)
        self._others = {name: tensor.detach().to("cpu", copy=True) for name, tensor in more.items()}
        self._config = copy.deepcopy(model.config)
        self._config.dtype = dtype_name(dtype)
        self._config.architectures = [type(model).__name__]
        self._generation = model.generation_config if model.can_generate() else None

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return self._files.size

    def write(self, folder: Path, boxes: Iterable[Box]) -> int:
        """See `PartedFiles.write`; the folder is made."""
        folder.mkdir(parents=True, exist_ok=True)
        return self._files.write(folder, boxes)

    def finish(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> int:
        """All but the weights, by one rank, whenever it wants to. As `write`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._files.finish(folder)
        self._config.save_pretrained(str(folder))
        if self._generation is not None:
            self._generation.save_pretrained(str(folder))
        if tokenizer is not None:
            tokenizer.save_pretrained(str(folder))
        whole = ((name, (0,) * tensor.dim(), tensor) for name, tensor in self._others.items())
        return self._files.write(folder, whole)


class NotInParts(Exception):
    """The files of such a model hold no parts of its parameters: they are worked out of all of it."""
