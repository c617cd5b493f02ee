"""Dtypes by the name that torch has for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
    }
)
"""Of one number."""
SAFETENSORS_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "bfloat16": "BF16",
        "float16": "F16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint8": "U8",
        "bool": "BOOL",
    }
)
"""As the header of a safetensors file calls them."""


def dtype_name(dtype: object) -> str:
    """`dtype`: a `torch.dtype`, or its name, as `torch.float32`, which is `float32` then."""
    return str(dtype).removeprefix("torch.")
