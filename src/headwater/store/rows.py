"""Rows of views as the store keeps them: encoding, decoding, and retractions. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.change import Change, Op
from headwater.json_values import finite
from headwater.store.shapes import ViewShape
from headwater.store.values.columns import Value, decode_value, encode_column

# json.dumps makes an encoder in every call unless all its options are the defaults.
_KEY_TEXT = json.JSONEncoder(ensure_ascii=False).encode
_ROW_TEXT = json.JSONEncoder(allow_nan=False).encode

StoredRow = tuple[Value, ...]
RowChange = tuple[Op, str, StoredRow | None, StoredRow | None]
"""Operation, key, the row before and the row after."""


@dataclass(frozen=True, slots=True)
class Retraction:
    """A row to delete, if it is the one in the view.

    With `put`, the same batch inserted the row before it retracted it. The insert would have replaced the row that
    the view has for this key, so that row is deleted even if it is a different one.
    """

    row: StoredRow
    put: bool = False


def encode_rows(
    shape: ViewShape, rows: pa.Table, signs: Sequence[int] | None = None
) -> dict[str, StoredRow | Retraction]:
    """Return rows by key; if a batch has a key twice, the last row wins."""
    columns = {c.name: encode_column(rows.column(c.name)) for c in shape.columns}
    keys = zip(*(columns[name] for name in shape.key), strict=True)
    values = zip(*columns.values(), strict=True)
    found: dict[str, StoredRow | Retraction] = {}
    for number, (key, row) in enumerate(zip(keys, values, strict=True)):
        name = _KEY_TEXT(key)
        if signs is None or signs[number] > 0:
            found[name] = row
            continue
        present = found.get(name)
        if present is None:
            found[name] = Retraction(row)
        elif not isinstance(present, Retraction) and is_same(shape, present, row):
            found[name] = Retraction(row, put=True)  # If they differ, another row has taken the key since.
    return found


def is_same(shape: ViewShape, one: Sequence[Value], other: Sequence[Value]) -> bool:
    """Return whether two rows agree in all columns but floating-point ones, which may be rounded differently."""
    columns = zip(shape.columns, one, other, strict=True)
    return all(a == b for column, a, b in columns if column.type not in ("double", "float"))


def decode_row(shape: ViewShape, row: Sequence[Value]) -> dict[str, Any]:
    return {c.name: decode_value(c, value) for c, value in zip(shape.columns, row, strict=True)}


def decode_change(shape: ViewShape, position: int, op: str, before: str | None, after: str | None) -> Change:
    rows = [text and decode_row(shape, json.loads(text)) for text in (before, after)]
    present = rows[1] or rows[0]
    assert isinstance(present, dict)  # a change has at least one side
    return Change(
        op=Op(op),
        key=tuple(present[name] for name in shape.key),
        before=rows[0] or None,
        after=rows[1] or None,
        position=position,
    )


def row_text(row: StoredRow | None) -> str | None:
    """Return a row as a JSON list; infinities are text, because JSON has none."""
    if row is None:
        return None
    try:
        return _ROW_TEXT(row)
    except ValueError:
        return _ROW_TEXT([finite(value) if isinstance(value, float) else value for value in row])
