"""The one place where an operator is attached to Spark: `attach` runs a kernel over the rows of a DataFrame.

A new operator is a kernel in `headwater.process` and a function in `headwater.spark.operators` that

1. reads the event time and the watermark of its input (`operators.timing`),
2. makes the kernel for the schema of its input (`operators.timing.kernel_schema`),
3. calls `attach` with a description of what it computes (`describe`).

The description is kept with the query's checkpoint (`definition`). A query whose description has changed
cannot continue from its checkpoint, so neither the names nor the texts in it may change without need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.change import CHANGE
from headwater.process.kernel import BEGINNING, OperatorKernel
from headwater.spark.kernels.change_lineage import Changes, changes_of, mark_of
from headwater.spark.kernels.column_names import with_metadata
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.runner import run_kernel
from headwater.spark.kernels.times import Times
from headwater.spark.kernels.watermark_sources import WATERMARK, watermark_columns
from headwater.spark.source.decoding import EVENT_TIME_KEY

Description = dict[str, Any]

INPUTS = "inputs"
"""Part of a description: the DataFrames that the operator was applied to; the steps to them are described, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTiming:
    """The event time and the watermark of an operator's output.

    `event_time` is the column of its event time, if the output has that column. With `has_watermark` the output
    has a column `_watermark` for the next operator. Rows may be `hold` microseconds older than the watermark at
    which they are emitted; that much is subtracted from it, so that they are not late.
    """

    event_time: str | None = None
    has_watermark: bool = False
    hold: int = 0


def describe(name: str, kernel: OperatorKernel, parts: Mapping[str, Any], *inputs: DataFrame) -> Description:
    """Describe an operator by its name, its arguments, the schema of its state, and its inputs."""
    state = {name: str(dict(table.schema)) for name, table in kernel.initial().items()}
    return {"name": name, **parts, "state": state, INPUTS: inputs}


def attach(
    rows: DataFrame,
    kernel: OperatorKernel,
    description: Description,
    *,
    by: Sequence[str],
    kind: str,
    times: Times = Times(),  # noqa: B008 - frozen
    output: OutputTiming = OutputTiming(),  # noqa: B008 - frozen
) -> DataFrame:
    """Run a kernel over the rows of a DataFrame, with one state for each value of `by`.

    `kind` names the operator in facts, in the late ledger and in messages.
    """
    changes = changes_of(rows)
    context = current_query()
    context.descriptions.append(description)
    times_in = {"watermark": WATERMARK} if output.has_watermark else {}
    if context.drafts is None:
        result = run_kernel(rows, kernel, by=by, times=times, times_in=times_in, kind=kind)
    else:
        result = context.drafts.add(
            rows, kernel, by=by, times=times, times_in=times_in, kind=kind, hold=output.hold
        )
    if output.has_watermark and output.hold:
        held = F.greatest(F.col(WATERMARK), F.lit(BEGINNING + output.hold)) - output.hold
        result = result.withColumn(WATERMARK, held)
    if CHANGE in result.columns:
        retracts = kernel.retracts(changes is not None and changes.retracts)
        result = with_metadata(result, CHANGE, mark_of(Changes(kind, retracts)))
    if output.event_time is None or output.event_time not in result.columns:
        return result
    return with_metadata(result, output.event_time, event_time_marks(kind, has_watermark=output.has_watermark))


def event_time_marks(kind: str, *, has_watermark: bool) -> dict[str, Any]:
    """Return the metadata of the event time's column of an operator's output."""
    return {EVENT_TIME_KEY: True, **watermark_columns(kind, *([WATERMARK] if has_watermark else []))}
