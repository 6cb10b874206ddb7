"""The store of views passes the contract of sinks, except for fencing: its data directory is locked."""

import base64
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pytest

from headwater.sink import Batch, Guarantee, Stream
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from headwater.testing.sink_contract import Destination, SinkContract, json_form
from support.postgres import PostgresServer


class StoreSink:
    """A view of a store as a sink."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, location: Path | str) -> None:
        self.location = location

    def open(self, stream: Stream) -> "StoreWriter":
        store = ViewStore(self.location)
        columns = tuple(Column(f.name, _spark_name(f.type)) for f in stream.schema)
        try:
            store.declare(ViewShape(name="v", key=stream.key, columns=columns))
        except BaseException:
            store.close()
            raise
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


class StoreContract(SinkContract):
    # Not needed by a store in a locked data directory.
    keyless: ClassVar[bool] = False
    test_rows_without_a_key_are_appended = None
    test_changes_without_a_key = None
    test_a_run_that_was_replaced_is_over = None
    test_a_run_that_continues_another_keeps_its_rows = None
    test_a_later_writer_fences_the_earlier_one = None
    test_only_one_of_two_concurrent_writers_succeeds = None
    test_queries_do_not_fence_each_other = None

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        if pa.types.is_binary(kind):
            return base64.b64encode(value).decode()
        if pa.types.is_decimal(kind):
            return f"{value:.{kind.scale}f}"
        return json_form(value, kind)


class TestInAFile(StoreContract):
    @pytest.fixture
    def new_destination(self, tmp_path: Path) -> Callable[[], Destination]:
        return lambda: destination_at(tmp_path / f"{uuid4()}.db")


class TestInPostgres(StoreContract):
    kills = 2

    @pytest.fixture
    def new_destination(self, postgres: PostgresServer) -> Callable[[], Destination]:
        return lambda: destination_at(f"{postgres.dsn}?schema=s{uuid4().hex}")


def destination_at(location: Path | str) -> Destination:
    def read(stream: Stream) -> list[dict[str, Any]]:
        with closing(ViewStore(location)) as store:
            return store.rows("v")

    return Destination(sink=StoreSink(location), read=read)
