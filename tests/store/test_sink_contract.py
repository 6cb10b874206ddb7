"""The store of views keeps the contract of sinks, as far as it is one: a locked data folder has no rivals."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pytest

from headwater.sink import Batch, Guarantee, Stream
from headwater.store.columns import Column
from headwater.store.shapes import ViewShape
from headwater.store.views import ViewStore
from headwater.testing.sinks import Place, SinkContract, json_form


class StoreSink:
    """A store's view as a place for results."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, stream: Stream) -> "StoreWriter":
        store = ViewStore(self.path)
        columns = tuple(Column(f.name, _spark_name(f.type)) for f in stream.schema)
        store.declare(ViewShape(name="v", key=stream.key, columns=columns))
        return StoreWriter(store)


class StoreWriter:
    def __init__(self, store: ViewStore) -> None:
        self._store = store

    def write(self, batch: Batch) -> bool:
        signs = None if batch.signs is None else batch.signs.to_pylist()
        return self._store.commit_rows("v", batch.rows, run=batch.run, batch=batch.number, signs=signs)

    def close(self) -> None:
        self._store.close()


def _spark_name(kind: pa.DataType) -> str:
    names = {
        **{pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"},
        **{pa.float64(): "double", pa.float32(): "float", pa.bool_(): "boolean"},
    }
    if pa.types.is_nested(kind):
        return "map" if pa.types.is_map(kind) else "struct" if pa.types.is_struct(kind) else "array"
    return names.get(kind, "string")


class TestViewStore(SinkContract):
    # What a place outside needs, and a store below a locked folder does not.
    keyless: ClassVar[bool] = False
    test_rows_without_a_key_are_appended = None
    test_changes_without_a_key = None
    test_a_run_that_was_replaced_is_over = None
    test_a_run_that_continues_another_keeps_its_rows = None
    test_who_opens_later_fences_who_opened_before = None
    test_of_two_that_open_at_the_same_time_one_writes = None
    test_queries_do_not_fence_each_other = None

    @pytest.fixture
    def new_place(self, tmp_path: Path) -> Callable[[], Place]:
        def make() -> Place:
            path = tmp_path / f"{uuid4()}.db"
            return Place(sink=StoreSink(path), read=lambda stream: ViewStore(path).rows("v"))

        return make

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        if pa.types.is_binary(kind):
            return base64.b64encode(value).decode()
        if pa.types.is_decimal(kind):
            return f"{value:.{kind.scale}f}"
        return json_form(value, kind)
