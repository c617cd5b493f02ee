"""The safetensors files of a model folder: which tensors they hold, read from their headers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.config import ConfigError

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F16", "BF16", "F32", "F64")
_WEIGHTS = ("weight", "weight_packed", "weight_int8")
"""How the names of matrices end. Buffers of integers, as masks, have other names."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    shape: tuple[int, ...]
    dtype: str
    """As safetensors calls it: `F32`, `BF16`, `I8` ..."""

    @property
    def size(self) -> int:
        """Elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the model's weight files, by its name in them. Reads no tensor.

    Raises ConfigError for a file that is missing, cut off or damaged, and for weights that are no floating-point
    numbers of 16 bits or more.
    """
    from safetensors import SafetensorError, safe_open

    stored: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                    part = opened.get_slice(name)
                    stored[name] = StoredTensor(tuple(part.get_shape()), str(part.get_dtype()))
        except (SafetensorError, OSError) as error:
            raise _damaged(file, error) from error
    _check_dtypes(folder, stored)
    return stored


def files_of_tensors(folder: Path) -> dict[str, Path]:
    """The file of each tensor of the model. Raises ConfigError, as `read_headers`."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Path] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="np") as opened:
                found |= dict.fromkeys(opened.keys(), file)
        except (SafetensorError, OSError) as error:
            raise _damaged(file, error) from error
    return found


def _damaged(file: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"weights file {str(file)!r} is cut off or damaged ({_reason(error)}); copy it again, or save the model again"
    )


def weight_files(folder: Path) -> Iterator[Path]:
    """Those that transformers reads. Raises ConfigError."""
    if (folder / _WHOLE).is_file():
        yield folder / _WHOLE
        return
    if not (folder / _INDEX).is_file():
        found = ", ".join(sorted(path.name for path in folder.glob("*.safetensors"))[:3])
        raise ConfigError(
            f"model folder {str(folder)!r} has no {_WHOLE}, and no {_INDEX} that says what is in {found}; save the "
            "model again with `model.save_pretrained(folder)`"
        )
    try:
        parts = sorted(set(json.loads((folder / _INDEX).read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(
            f"{str(folder / _INDEX)!r} is damaged ({_reason(error)}); copy it again, or save the model again"
        ) from error
    for part in parts:
        # What a name leads to is read as the model: it may not lead out of its folder.
        if not isinstance(part, str) or Path(part).name != part or not (folder / part).is_file():
            raise ConfigError(
                f"model folder {str(folder)!r} lacks the weights file {part!r} that its {_INDEX} names; copy it there"
            )
        yield folder / part


def _check_dtypes(folder: Path, stored: dict[str, StoredTensor]) -> None:
    wrong = {n: t.dtype for n, t in stored.items() if t.dtype not in _FLOATS and n.rpartition(".")[2] in _WEIGHTS}
    if wrong:
        name, dtype = next(iter(wrong.items()))
        raise ConfigError(
            f"{len(wrong)} weights of model {str(folder)!r} are no floating-point numbers of 16 bits or more ({name} "
            f"is {dtype}): quantised weights cannot be trained or served here; give the model as it was before"
        )


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]
