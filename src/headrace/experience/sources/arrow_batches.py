"""Batches of Arrow columns as rows, and the part of a batch that a survey looks at."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.config import ConfigError
from headrace.experience.sources.joined_fields import without_joined
from headrace.experience.sources.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa


def readable(schema: pa.Schema) -> list[str]:
    """The columns that can be given as JSON: those that hold bytes, as pictures, are left out."""
    return [field.name for field in schema if not _holds_bytes(field.type)]


def check_names(schema: pa.Schema, where: str) -> None:
    """Raises ConfigError where two columns have one name."""
    names = list(schema.names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where} has two columns {twice!r}; rename one")


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the values themselves in place of dictionaries, which a file of many batches cannot repeat."""
    import pyarrow as pa

    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(batch.schema.names))


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """JSON values only. Dates and times are ISO text, decimals text, NaN and infinities null; null fields of messages,
    tools and calls are left out, since a column of structs cannot tell them from absent ones."""
    try:
        return [{name: without_joined(plain(value)) for name, value in row.items()} for row in batch.to_pylist()]
    except (UnicodeError, ValueError, OverflowError) as error:
        raise ConfigError(f"a row holds a value that cannot be read ({error}); correct it, or remove its column") from (
            error
        )


def plain(value: Any) -> Any:
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: plain(part) for key, part in value.items()}
        case list():
            if value and all(isinstance(part, tuple) for part in value):  # a map
                return {str(key): plain(part) for key, part in value}
            return [plain(part) for part in value]
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return str(value)
    return str(value)


def is_text(batch: pa.RecordBatch, column: str) -> bool:
    """Whether a column is of text."""
    import pyarrow as pa

    kind = batch.column(column).type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def message_counts(batch: pa.RecordBatch, column: str) -> list[int]:
    """Of each prompt, which `prompt_lengths` could judge; 0 of text."""
    import pyarrow.compute as pc

    return [0] * batch.num_rows if is_text(batch, column) else pc.list_value_length(batch.column(column)).to_pylist()


def prompt_lengths(batch: pa.RecordBatch, column: str) -> pa.Array | None:
    """Bytes of each prompt as UTF-8; None where some may be no good, or are of a kind that this cannot judge."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in batch.schema.names:
        return None
    values = batch.column(column)
    if values.null_count:
        return None
    if is_text(batch, column):
        lengths = pc.binary_length(values)
        return None if len(lengths) and pc.min(lengths).as_py() == 0 else lengths
    kinds = (pa.types.is_list, pa.types.is_large_list)
    if not any(kind(values.type) for kind in kinds) or not pa.types.is_struct(values.type.value_type):
        return None
    messages = values.flatten()
    fields = {field.name: field.type for field in values.type.value_type}
    if (
        {"role", "content"} - fields.keys()
        or "tool_calls" in fields
        or not all(pa.types.is_string(kind) for kind in fields.values())
    ):
        return None
    said, roles = pc.struct_field(messages, "content"), pc.struct_field(messages, "role")
    if messages.null_count or said.null_count or roles.null_count or pc.any(pc.equal(roles, "")).as_py():
        return None
    ends = pc.cumulative_sum(pc.list_value_length(values)).to_numpy(zero_copy_only=False)
    starts = [0, *ends[:-1].tolist()]
    if len(ends) and (pc.min(pc.list_value_length(values)).as_py() == 0):
        return None
    import numpy as np

    sizes = pc.binary_length(said).to_numpy(zero_copy_only=False)
    return pa.array(np.add.reduceat(sizes, starts) if len(starts) and len(sizes) else [], pa.int64())


def pick(batch: pa.RecordBatch, columns: Iterable[str]) -> dict[str, pa.Array]:
    """Those of `columns` that are there, nested ones by their dotted names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, Any] = {}
    for name in columns:
        parts = [name] if name in batch.schema.names else name.split(".")
        if parts[0] not in batch.schema.names:
            continue
        values = batch.column(parts[0])
        for part in parts[1:]:
            if not pa.types.is_struct(values.type) or values.type.get_field_index(part) < 0:
                break
            values = pc.struct_field(values, part)
        else:
            found[name] = values
    return found


def ids_of(values: pa.Array) -> list[str] | None:
    """As text; None where some are no ids."""
    import pyarrow as pa

    if values.null_count:
        return None
    if pa.types.is_integer(values.type):
        return list(map(str, values.to_pylist()))
    return values.to_pylist() if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) else None


def numbers_of(values: pa.Array) -> list[float] | None:
    """None where some are no numbers."""
    import pyarrow as pa

    if values.null_count or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    numbers = values.to_numpy(zero_copy_only=False).astype(float)
    return None if (numbers != numbers).any() else numbers.tolist()


def rows_from(columns: dict[str, pa.Array]) -> list[Row]:
    """Rows of these columns alone."""
    import pyarrow as pa

    simple = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean)
    if all(any(test(values.type) for test in simple) for values in columns.values()):
        names, lists = list(columns), [values.to_pylist() for values in columns.values()]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
    return rows_of(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


def _holds_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    of_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    if any(test(kind) for test in of_bytes):
        return True
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    return any(_holds_bytes(kind.field(place).type) for place in range(kind.num_fields))
