"""Runs one batch for queries of a lane: level by level, first the steps of Spark, then the kernels.

An operator that several of the queries have is computed once; they have the same state (`sharing`).

All inputs of operators of the same level, and the results of queries without further operators, are computed by
one job if the batch is small, except for those that need no Spark (`column_selection`). If that job fails, each
of them is computed alone: then only the query that fails drops out.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.process.kernel import BEGINNING, Now
from headwater.spark.kernels.frames import as_schema, from_arrow, from_bytes, in_pieces, slices, to_arrow, to_bytes
from headwater.spark.lanes.jobs import LaneJobs
from headwater.spark.lanes.member import Member, MemberBatch
from headwater.spark.lanes.steps.blueprint import DrawnOperator
from headwater.spark.lanes.steps.column_selection import ColumnSelection
from headwater.spark.lanes.steps.operator_steps import (
    LINEAGE,
    STEP_ROWS_MAX,
    combined,
    run_operator,
)
from headwater.spark.lanes.steps.stage_plan import LaneSession, SmallRows, StagePlan, numbered, split, union_of
from headwater.spark.lanes.topic_rows import TopicRows
from headwater.spark.session.jvm import check_java
from headwater.spark.source.offsets import Range

PLANS_KEPT, SELECTIONS_KEPT = 64, 4096
PAYLOAD_ROWS = 200_000

SMALL_BATCH_S, LARGE_BATCH_S = 30.0, 120.0
"""Time that the functions of queries which share a lane may take; long, since the first batch starts workers."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps of Spark: those before an operator of a query, or those after the last one if `operator` is None."""

    member: Member
    operator: DrawnOperator | None

    @property
    def rows(self) -> DataFrame:
        assert self.member.blueprint is not None
        return self.member.blueprint.rows if self.operator is None else self.operator.rows

    @property
    def leaves(self) -> frozenset[int]:
        """The placeholders that its rows come from."""
        assert self.member.blueprint is not None
        return self.member.blueprint.leaves if self.operator is None else self.operator.leaves

    @property
    def key(self) -> tuple[int, str]:
        assert self.member.blueprint is not None
        return self.member.blueprint.number, "" if self.operator is None else self.operator.name


@dataclass(slots=True)
class StagePlans:
    """The plans of stages and of unions of stages, made when they are first needed, and their sessions."""

    small: LaneSession
    large: LaneSession
    _plans: dict[tuple[tuple[int, str], ...], StagePlan] = field(default_factory=dict)
    _selections: dict[tuple[int, str], ColumnSelection | None] = field(default_factory=dict)

    def selection(self, stage: Stage) -> ColumnSelection | None:
        """Return the steps of a stage for a small batch, if they need no Spark."""
        if stage.key not in self._selections:
            if len(self._selections) >= SELECTIONS_KEPT:
                self._selections.clear()
            # In a lane, the time of rows is that of their topics.
            unused = () if stage.operator is None else stage.operator.hints
            try:
                self._selections[stage.key] = ColumnSelection.of(stage.rows, _leaves([stage]), unused)
            except PySparkException:  # Spark cannot plan the stage, and raises again when it runs it.
                self._selections[stage.key] = None
        return self._selections[stage.key]

    def of(self, stages: Sequence[Stage]) -> StagePlan:
        """Return the plan of a stage, or of several stages as one job."""
        key = tuple(stage.key for stage in stages)
        if key not in self._plans:
            if len(self._plans) >= PLANS_KEPT:
                self._plans.clear()  # The queries of the lane have changed often.
            rows = [numbered(stage.rows) for stage in stages]
            self._plans[key] = StagePlan(rows[0] if len(rows) == 1 else union_of(rows), _leaves(stages))
        return self._plans[key]


def _leaves(stages: Sequence[Stage]) -> frozenset[int]:
    found: set[int] = set()
    for stage in stages:
        assert stage.member.blueprint is not None
        found |= stage.member.blueprint.topics.keys()
        found |= {operator.leaf for operator in stage.member.blueprint.operators}
    return frozenset(found)


StageWork = tuple[MemberBatch, Stage]


class BatchRun:
    """Runs a batch; `is_large` if its rows are in Spark's cache.

    With `is_limited`, a query whose function takes long gets a TookTooLongError.
    """

    def __init__(
        self,
        plans: StagePlans,
        rows: Mapping[str, TopicRows],
        ranges: Mapping[str, Sequence[Range]],
        jobs: LaneJobs,
        *,
        is_large: bool,
        is_limited: bool,
    ) -> None:
        self._ranges = ranges
        self._small, self._large = plans.small, plans.large
        self._plans = plans
        self._rows = rows
        self._is_large = is_large
        self._jobs = jobs
        self._limit_s = (LARGE_BATCH_S if is_large else SMALL_BATCH_S) if is_limited else None
        self._leaves: dict[int, Any] = {}
        self._empty: set[int] = set()

    def run(self, members: Sequence[Member], clock_ms: Mapping[str, int]) -> list[MemberBatch]:
        """Compute the results of the members; `clock_ms` is the processing time of each one's batch.

        Raises SparkDiedError if Java has died: then no member has a result, so that all stay at one position.
        """
        batches = [self._begun(member, clock_ms[member.name] * 1000) for member in members]
        drawn = [batch for batch in batches if batch.member.blueprint is not None]
        last = max((batch.member.blueprint.level for batch in drawn if batch.member.blueprint), default=-1)
        for level in range(last + 1):
            alive = [batch for batch in drawn if batch.error is None]
            stages = [(batch, stage) for batch in alive for stage in _stages(batch.member, level)]
            self._run_level(stages, clock_ms)
        for batch in batches:
            if isinstance(batch.error, Py4JError | OSError):  # Errors of the connection to Java.
                check_java(batch.error)
        return batches

    def _begun(self, member: Member, clock: int) -> MemberBatch:
        """Advance the watermarks of the member's topics, and bind its placeholders to their rows."""
        batch = MemberBatch(member, dict(member.clocks))
        try:
            for name in member.topics if member.has_operators else ():
                found = self._rows.get(name)
                batch.clocks[name] = member.clocks[name].observed(
                    {} if found is None else found.event_times, clock
                )
            for leaf, topic in ({} if member.blueprint is None else member.blueprint.topics).items():
                found = self._rows.get(topic.name)
                if leaf in self._leaves:  # Another member has it, too.
                    continue
                if found is None or not found.records:
                    self._put_empty(leaf)
                else:
                    self._leaves[leaf] = found.leaf(member.left_out[topic.name])
        except Exception as error:
            batch.error = error
        return batch

    def _run_level(self, stages: Sequence[StageWork], clock_ms: Mapping[str, int]) -> None:
        first: dict[int, MemberBatch] = {}
        own, shared = [], []
        for batch, stage in stages:
            if stage.operator is None or first.setdefault(stage.operator.leaf, batch) is batch:
                own.append((batch, stage))
            else:
                shared.append((batch, stage.operator))
        for (batch, stage), rows in self._computed(own):
            try:
                if isinstance(rows, BaseException):
                    raise rows
                if stage.operator is None:
                    assert isinstance(rows, pa.Table)
                    batch.rows = rows.rename_columns(stage.rows.columns)
                else:
                    self._run_operator(batch, stage.operator, rows, clock_ms[batch.member.name] * 1000)
            except Exception as error:
                batch.error = batch.error or error
        for batch, operator in shared:
            computed = first[operator.leaf]
            if operator.leaf in computed.operators:
                batch.operators[operator.leaf] = replace(computed.operators[operator.leaf], operator=operator)
            else:
                batch.error = batch.error or computed.error

    def _run_operator(self, batch: MemberBatch, operator: DrawnOperator, rows: Any, clock: int) -> None:
        member = batch.member
        notes = member.notes.get(operator.name, {})
        pieces = (
            rows if isinstance(rows, list) else combined(operator, rows, int(notes.get("watermark", BEGINNING)))
        )
        done = run_operator(
            operator,
            member.states[operator.name],
            notes,
            pieces,
            followed=_followed(batch, operator, clock),
            clock=clock,
            lineage=self._lineage(batch, operator, clock),
        )
        batch.operators[operator.leaf] = done
        if not done.output.num_rows:
            self._put_empty(operator.leaf)
        elif self._is_large:
            frame = self._large.spark.createDataFrame(done.output, operator.output_type)
            self._leaves[operator.leaf] = frame._jdf.queryExecution().toRdd()
        else:
            self._leaves[operator.leaf] = SmallRows(done.output, operator.output_type.json(), self._small)

    def _lineage(self, batch: MemberBatch, operator: DrawnOperator, clock: int) -> str:
        """Return the lineage of an operator's state after this batch: a hash of what the state depends on.

        After a restart the operator has another mark, because its query may have changed.
        """
        before = batch.member.notes.get(operator.name, {}).get(LINEAGE)
        read = [(name, repr(self._ranges[name])) for name in sorted(operator.topics & self._ranges.keys())]
        parts = [repr(self._rows[name].part(batch.member.left_out[name])) for name, _ in read]
        above = [batch.operators[leaf].notes[LINEAGE] for leaf in sorted(operator.leaves & batch.operators.keys())]
        known = (before, operator.mark, read, parts, above, clock)
        return hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()

    def _put_empty(self, leaf: int) -> None:
        self._empty.add(leaf)
        self._leaves[leaf] = self._large.no_rows() if self._is_large else None

    # -- Spark ------------------------------------------------------------------------------------------------

    def _computed(self, stages: Sequence[StageWork]) -> list[tuple[StageWork, Any]]:
        """Compute the rows of stages; an error in place of the rows of a stage that fails."""
        found: dict[int, Any] = {}
        spark: list[int] = []
        for number, (_, stage) in enumerate(stages):
            selection = None if self._is_large else self._plans.selection(stage)
            if selection is None:
                spark.append(number)
            if stage.leaves <= self._empty:
                found[number] = self._nothing(stage)
            elif selection is not None:
                found[number] = _caught(partial(selection.run, self._leaves[selection.leaf].table))
        busy = [number for number in spark if number not in found]
        if len(busy) > 1 and not self._is_large:
            # All of them, although some have no rows: there would be a plan for each combination.
            found |= dict(zip(spark, self._together([stages[number][1] for number in spark]), strict=False))
        for number in busy:
            if number not in found:
                found[number] = _caught(partial(self._alone, *stages[number]))
        return [(one, found[number]) for number, one in enumerate(stages)]

    def _together(self, stages: Sequence[Stage]) -> list[pa.Table]:
        """Compute the rows of stages as one job; return nothing if it fails, because of one of them."""
        try:
            return split(self._small_rows(self._plans.of(stages)), len(stages))
        except Exception:
            return []

    def _alone(self, batch: MemberBatch, stage: Stage) -> Any:
        """Compute the rows of one stage; for an operator of a large batch, the combined rows."""
        plan = self._plans.of([stage])
        if not self._is_large:
            return self._small_rows(plan)
        frame = plan.frame(self._large, self._leaves)
        if stage.operator is None:
            with self._jobs.within(self._limit_s):
                return self._large.table(frame)
        before = int(batch.member.notes.get(stage.operator.name, {}).get("watermark", BEGINNING))
        with self._jobs.within(self._limit_s):
            packed = frame.mapInArrow(_combining(stage.operator, before), "payload binary").toArrow()
        frames = (from_bytes(value.as_buffer()) for value in packed.column("payload"))
        return list(in_pieces(frames, STEP_ROWS_MAX))

    def _small_rows(self, plan: StagePlan) -> pa.Table:
        if plan.is_narrow:  # It runs no function of the user's, and no job that could be cancelled.
            return self._jobs.call(partial(plan.run, self._small, self._leaves), self._limit_s)
        with self._jobs.within(self._limit_s):
            return plan.run(self._small, self._leaves)

    def _nothing(self, stage: Stage) -> Any:
        if stage.operator is not None:
            return []
        return to_arrow_schema(stage.rows.schema, timezone="UTC").empty_table()


def _stages(member: Member, level: int) -> list[Stage]:
    assert member.blueprint is not None
    found = [Stage(member, operator) for operator in member.blueprint.operators if operator.level == level]
    return [*found, Stage(member, None)] if member.blueprint.level == level else found


def _followed(batch: MemberBatch, operator: DrawnOperator, clock: int) -> list[int] | None:
    """Return the watermarks that an operator's own is the minimum of; None if it has none."""
    if not operator.held_by:
        return None
    assert batch.member.blueprint is not None
    found: list[int] = []
    for leaf in operator.held_by:
        topic = batch.member.blueprint.topics.get(leaf)
        if topic is not None:
            found += batch.clocks[topic.name].active(clock)
        elif (watermark := batch.operators[leaf].watermark) is not None:
            found.append(watermark)
    return found


def _caught(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception as error:
        return error


def _combining(operator: DrawnOperator, watermark: int) -> Callable[[Any], Any]:
    """Make the function for `mapInArrow` that combines the rows of a task, and packs them to Arrow bytes."""
    kernel, arriving, hints = operator.kernel, operator.arriving, operator.hints

    def combine(batches: Any) -> Any:
        names = arriving.names()
        frames = (as_schema(from_arrow(batch.rename_columns(names)), arriving).drop(hints) for batch in batches)
        pieces = (piece for frame in frames for piece in slices(frame, PAYLOAD_ROWS))
        for piece in in_pieces(pieces, PAYLOAD_ROWS):
            rows = kernel.combine(piece, Now(watermark=watermark))
            yield pa.RecordBatch.from_pydict({"payload": [to_bytes(to_arrow(rows.rechunk())).to_pybytes()]})

    return combine
