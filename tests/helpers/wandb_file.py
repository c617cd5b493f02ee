"""Reads the file of an offline run of W&B: records in the format of LevelDB's log, in blocks of 32 KiB."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEADER, _START = 32768, 7, 7


def records(path: Path) -> Iterator[Any]:
    """Its protobufs. A record that the end of a process tore is left out."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), _START, b""
    assert data.startswith(b":W&B")
    while place + _HEADER <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + _HEADER])
        parts += data[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items(update: Any) -> dict[str, Any]:
    """Of a record's `item` or `update`: values by key, keys of several parts joined by slashes."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in update}
