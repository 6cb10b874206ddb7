import pyarrow as pa
import pytest

from headwater.errors import ConflictError
from headwater.sink import Batch, Stream
from headwater.sinks.progress import BatchAction, SinkProgress, advance, judge

STREAM = Stream(query="app.q", schema=pa.schema({"v": pa.int64()}))
ROWS = pa.table({"v": [1]})


def batch(run: str, number: int) -> Batch:
    return Batch(run=run, number=number, rows=ROWS)


def test_what_is_there_is_skipped() -> None:
    known = SinkProgress(run="a", number=5)
    assert judge(None, batch("a", 7), STREAM, "t") is BatchAction.ADD
    assert [judge(known, batch("a", n), STREAM, "t") for n in (0, 5, 6, 9)] == [
        BatchAction.SKIP,
        BatchAction.SKIP,
        BatchAction.ADD,
        BatchAction.ADD,
    ]


def test_a_new_run_starts_afresh_unless_it_continues() -> None:
    known = SinkProgress(run="a", number=5)
    assert judge(known, batch("b", 0), STREAM, "t") is BatchAction.START_AFRESH
    going_on = Stream(query="app.q", schema=STREAM.schema, continues="a")
    assert judge(known, batch("b", 0), going_on, "t") is BatchAction.ADD
    assert judge(SinkProgress(run="c", number=5), batch("b", 0), going_on, "t") is BatchAction.START_AFRESH


def test_a_replaced_run_is_refused_for_ever() -> None:
    known = None
    for run in ("a", "b", "c"):
        known = advance(known, batch(run, 0))
    assert known == SinkProgress(run="c", number=0, past=("a", "b"))
    for run in ("a", "b"):
        with pytest.raises(ConflictError, match=r"'app.q' to t: its checkpoint .* was replaced"):
            judge(known, batch(run, 9), STREAM, "t")
    assert advance(known, batch("c", 4)) == SinkProgress(run="c", number=4, past=("a", "b"))
