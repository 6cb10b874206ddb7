"""Rows as JSON objects. Polars writes the columns whose types it supports, Python the others (`json_values`)."""

from itertools import groupby
from typing import cast

import polars as pl
import pyarrow as pa

from headwater.json_values import TIME_FORMAT, json_part, json_text

_ROW = "_headwater_row"


def json_objects(rows: pa.Table) -> pa.Array:
    """Return each row as the UTF-8 text of a JSON object, its members in the order of the columns."""
    frame = cast(
        pl.DataFrame, pl.from_arrow(rows.select([n for n in rows.column_names if _polars_writes(rows, n)]))
    )
    pieces: list[pl.Expr] = []
    for by_polars, names in groupby(rows.column_names, key=lambda name: name in frame.columns):
        if by_polars:
            members = pl.struct([_plain(pl.col(n), frame.schema[n]).alias(n) for n in names])
            pieces.append(members.struct.json_encode().str.strip_prefix("{").str.strip_suffix("}"))
            continue
        for name in names:
            frame = frame.with_columns(_by_python(rows.column(name)).alias(name))
            pieces.append(pl.lit(json_text(name) + ":") + pl.col(name))
    if not pieces:
        return pa.array([b"{}"] * rows.num_rows, pa.large_binary())
    separated = [part for piece in pieces for part in (pl.lit(","), piece)][1:]
    text = frame.select(pl.concat_str(pl.lit("{"), *separated, pl.lit("}")).alias(_ROW)).get_column(_ROW)
    return text.cast(pl.Binary).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.large_binary())


def json_values(column: pa.ChunkedArray) -> pa.Array:
    """Return each value of a column as JSON text; null stays null."""
    objects = cast(pl.Series, pl.from_arrow(json_objects(pa.table({"v": column}))))
    alone = objects.cast(pl.String).str.slice(len('{"v":')).str.strip_suffix("}")
    is_valid = cast(pl.Series, pl.from_arrow(column.is_valid()))
    return pl.select(pl.when(is_valid).then(alone)).to_series().to_arrow(compat_level=pl.CompatLevel.oldest())


def _by_python(column: pa.ChunkedArray) -> pl.Series:
    part = json_part(column.type)
    texts = ["null" if v is None else json_text(part(v)) for v in column.to_pylist()]
    return pl.Series(texts, dtype=pl.String)


def _polars_writes(rows: pa.Table, name: str) -> bool:
    kind = rows.schema.field(name).type
    if pa.types.is_floating(kind):
        # JSON has no NaN; Polars would write null.
        return bool(cast(pl.Series, pl.from_arrow(rows.column(name))).is_finite().fill_null(True).all())
    return _polars_supports(kind)


def _polars_supports(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_polars_supports(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_plain_type(kind.value_type)
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return _is_plain_type(kind) or pa.types.is_timestamp(kind) or binary


def _is_plain_type(kind: pa.DataType) -> bool:
    """Return whether Polars writes the type in our JSON form."""
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(text or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _plain(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Convert a value so that Polars writes it in our JSON form."""
    if isinstance(kind, pl.Struct):
        fields = [_plain(value.struct.field(f.name), f.dtype).alias(f.name) for f in kind.fields]  # type: ignore[arg-type]
        return pl.when(value.is_not_null()).then(pl.struct(fields))
    if isinstance(kind, pl.Datetime):
        micros = value.dt.cast_time_unit("us")
        zone = "Z" if kind.time_zone else ""
        return (micros.dt.convert_time_zone("UTC") if zone else micros).dt.strftime(f"{TIME_FORMAT}%.6f{zone}")
    if isinstance(kind, pl.Binary):
        return value.bin.encode("base64")
    return value
