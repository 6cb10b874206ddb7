import pyarrow as pa
import pytest

from headwater.errors import ConflictError
from headwater.sink import Batch, Stream
from headwater.sinks.progress import BatchStep, SinkProgress, next_step

STREAM = Stream(query="app.q", schema=pa.schema({"v": pa.int64()}))
ROWS = pa.table({"v": [1]})


def batch(run: str, number: int) -> Batch:
    return Batch(run=run, number=number, rows=ROWS)


def test_a_batch_that_was_written_is_skipped() -> None:
    assert next_step(None, batch("a", 7), STREAM, "t") is not None
    known = SinkProgress(run="a", number=5, past=("z",))
    assert [next_step(known, batch("a", n), STREAM, "t") for n in (0, 5)] == [None, None]
    for number in (6, 9):
        step = next_step(known, batch("a", number), STREAM, "t")
        assert step == BatchStep(replaces=False, progress=SinkProgress(run="a", number=number, past=("z",)))


def test_a_new_run_replaces_the_rows_unless_it_continues() -> None:
    known = SinkProgress(run="a", number=5)
    after = SinkProgress(run="b", number=0, past=("a",))
    assert next_step(known, batch("b", 0), STREAM, "t") == BatchStep(replaces=True, progress=after)
    continuing = Stream(query="app.q", schema=STREAM.schema, continues="a")
    assert next_step(known, batch("b", 0), continuing, "t") == BatchStep(replaces=False, progress=after)
    other = next_step(SinkProgress(run="c", number=5), batch("b", 0), continuing, "t")
    assert other is not None and other.replaces


def test_a_replaced_run_stays_refused() -> None:
    known = None
    for run in ("a", "b", "c"):
        step = next_step(known, batch(run, 0), STREAM, "t")
        assert step is not None
        known = step.progress
    assert known == SinkProgress(run="c", number=0, past=("a", "b"))
    for run in ("a", "b"):
        with pytest.raises(ConflictError, match=r"'app.q' to t: its checkpoint .* was replaced"):
            next_step(known, batch(run, 9), STREAM, "t")
