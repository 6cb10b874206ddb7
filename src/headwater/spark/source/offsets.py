"""The offsets that a query reads: options, limits and splits. Pure: no Spark, no connection.

Names and meanings are those of Spark's Kafka source. Offsets have its JSON form too: `{"orders": {"0": 17}}`. For
a query that uses the processing time, they also have the time at which it was last woken (`wake_ups`):
`{"orders": {"0": 17}, "@woken": {"ms": 1794900000000}}`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headwater.errors import InvalidError
from headwater.record import EARLIEST, LATEST, TopicPartition

Offsets = dict[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int]]
Excluded = tuple[tuple[TopicPartition, tuple[int, ...]], ...]
"""Offsets of single records to leave out, by partition."""

BOOTSTRAP = "kafka.bootstrap.servers"
ISOLATION = "kafka.isolation.level"
READ_COMMITTED, _READ_UNCOMMITTED = "read_committed", "read_uncommitted"
WOKEN = "@woken"
"""Key of the time of waking next to the topics; no topic can have this name."""
_SELECTIONS = ("subscribe", "subscribepattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The start or end of a read: one position for all partitions, or one for each.

    A position is an offset, EARLIEST or LATEST, or with `is_time` milliseconds since 1970.
    """

    everywhere: int | None = None
    each: tuple[tuple[TopicPartition, int], ...] = ()
    is_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of a read."""

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: Bound
    ending: Bound
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    every_partition: bool = False
    """A stream has a task for each partition in every batch, even without new records."""
    include_headers: bool = False
    include_reader: bool = False
    """Rows have a column with the name of the only query that a record is meant for."""
    fail_on_data_loss: bool = True
    read_committed: bool = False
    excluded: Excluded = ()
    reader: str | None = None
    """Name of the reader: records that were redriven for another reader are left out."""
    wake_ups: str | None = None
    """Path of the file with the query's next wake-up, at which a stream starts a batch without new records."""

    def wants(self, topic: str) -> bool:
        """Return whether a topic is to be read."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.named_topics

    @property
    def named_topics(self) -> tuple[str, ...]:
        return self.topics or tuple(dict.fromkeys(tp.topic for tp in self.assigned))


def read_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check the options of `spark.read` or `spark.readStream`; raise InvalidError for a wrong one."""
    given = {name.lower(): value for name, value in options.items()}
    if BOOTSTRAP not in given:
        raise InvalidError(f"cannot read the log: option {BOOTSTRAP!r} is missing", hint="host:port of a broker")
    selections = [name for name in _SELECTIONS if name in given]
    if len(selections) != 1:
        raise InvalidError(
            f"cannot read the log: give exactly one of 'subscribe', 'subscribePattern' and 'assign', "
            f"found {len(selections)}"
        )
    return SourceOptions(
        bootstrap_servers=given[BOOTSTRAP],
        topics=tuple(name.strip() for name in given.get("subscribe", "").split(",") if name.strip()),
        pattern=_pattern(given.get("subscribepattern")),
        assigned=_assignment(given.get("assign")),
        starting=_bound(given, "starting", default=LATEST if streaming else EARLIEST),
        ending=_bound(given, "ending", default=LATEST),
        max_offsets_per_trigger=_positive(given, "maxOffsetsPerTrigger"),
        min_partitions=_positive(given, "minPartitions"),
        every_partition=_flag(given, "everyPartition", default=False),
        include_headers=_flag(given, "includeHeaders", default=False),
        include_reader=_flag(given, "includeReader", default=False),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        read_committed=_isolation(given) == READ_COMMITTED,
        excluded=_excluded(given.get("excludedoffsets")),
        reader=given.get("readername"),
        wake_ups=given.get("wakeups"),
    )


def to_json(offsets: Offsets, woken: int | None = None) -> OffsetsJson:
    """Convert offsets, and the time of waking if there is one, to the form in Spark's checkpoint."""
    result: OffsetsJson = {}
    for partition in sorted(offsets):
        result.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    if woken is not None:
        result[WOKEN] = {"ms": woken}
    return result


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Convert offsets from the form in Spark's checkpoint, without the time of waking."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, partitions in offsets.items()
        if topic != WOKEN
        for number, offset in partitions.items()
    }


def woken_at(offsets: Mapping[str, Mapping[str, int]]) -> int | None:
    """Return the time of waking in offsets of Spark's checkpoint; None if the query was never woken."""
    return offsets.get(WOKEN, {}).get("ms")


def limit_offsets(start: Offsets, latest: Offsets, max_rows: int) -> Offsets:
    """Return the end offsets of a batch of about `max_rows`, in proportion to each partition's backlog.

    A partition with a backlog contributes at least one record, so that none is starved.
    """
    waiting = {tp: end - start.get(tp, end) for tp, end in latest.items()}
    total = sum(n for n in waiting.values() if n > 0)
    if total <= max_rows:
        return latest
    return {
        tp: start.get(tp, end) + min(n, max(1, n * max_rows // total)) if n > 0 else end
        for tp, (end, n) in {tp: (latest[tp], waiting[tp]) for tp in latest}.items()
    }


@dataclass(frozen=True, slots=True)
class Range:
    """The records of one partition that one task reads."""

    partition: TopicPartition
    start: int
    end: int


def split(start: Offsets, end: Offsets, min_partitions: int | None) -> list[Range]:
    """Split a batch into ranges for tasks: one for each partition, or more to reach `min_partitions`."""
    whole = [Range(tp, start[tp], end[tp]) for tp in sorted(end) if end[tp] > start[tp]]
    total = sum(r.end - r.start for r in whole)
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    return [part for r in whole for part in _cut(r, max(1, round((r.end - r.start) * min_partitions / total)))]


def _cut(whole: Range, parts: int) -> Iterable[Range]:
    size = whole.end - whole.start
    bounds = [whole.start + size * n // parts for n in range(parts + 1)]
    return (Range(whole.partition, low, high) for low, high in pairwise(bounds) if low < high)


# -- reading options ------------------------------------------------------------------------------------------


def _bound(given: Mapping[str, str], side: str, *, default: int) -> Bound:
    """Read a bound in Kafka's order of precedence: timestamp for all, timestamps by partition, offsets."""
    timestamp = given.get(f"{side}timestamp")
    if timestamp is not None:
        return Bound(everywhere=_int(f"{side}Timestamp", timestamp), is_time=True)
    by_time = given.get(f"{side}offsetsbytimestamp")
    if by_time is not None:
        return Bound(each=_each(f"{side}OffsetsByTimestamp", by_time), is_time=True)
    offsets = given.get(f"{side}offsets")
    if offsets is None:
        return Bound(everywhere=default)
    named = {"earliest": EARLIEST, "latest": LATEST}
    if offsets.lower() in named:
        return Bound(everywhere=named[offsets.lower()])
    return Bound(each=_each(f"{side}Offsets", offsets))


def _each(name: str, text: str) -> tuple[tuple[TopicPartition, int], ...]:
    parsed = _json(name, text)
    try:
        return tuple(from_json(parsed).items())
    except (AttributeError, TypeError, ValueError):
        raise InvalidError(
            f'cannot read option {name} = {text!r}: expected JSON such as {{"orders": {{"0": 17}}}}'
        ) from None


def _assignment(text: str | None) -> tuple[TopicPartition, ...]:
    if text is None:
        return ()
    parsed = _json("assign", text)
    try:
        return tuple(TopicPartition(topic, int(n)) for topic, numbers in parsed.items() for n in numbers)
    except (AttributeError, TypeError, ValueError):
        raise InvalidError(
            f'cannot read option assign = {text!r}: expected JSON such as {{"orders": [0, 1]}}'
        ) from None


def _excluded(text: str | None) -> Excluded:
    if text is None:
        return ()
    parsed = _json("excludedOffsets", text)
    try:
        return tuple(
            (TopicPartition(topic, int(number)), tuple(int(offset) for offset in offsets))
            for topic, partitions in parsed.items()
            for number, offsets in partitions.items()
        )
    except (AttributeError, TypeError, ValueError):
        raise InvalidError(
            f'cannot read option excludedOffsets = {text!r}: expected JSON such as {{"orders": {{"0": [17]}}}}'
        ) from None


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidError(f"cannot read option {name} = {text!r} as JSON: {error}") from None


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidError(f"cannot read option subscribePattern = {text!r}: {error}") from None
    return text


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    value = _int(name, text)
    if value <= 0:
        raise InvalidError(f"option {name} = {value}: expected a number above 0")
    return value


def _int(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidError(f"option {name} = {text!r}: expected a whole number") from None


def _isolation(given: Mapping[str, str]) -> str:
    level = given.get(ISOLATION, _READ_UNCOMMITTED).lower()
    if level not in (READ_COMMITTED, _READ_UNCOMMITTED):
        raise InvalidError(f"option {ISOLATION} = {level!r}: expected {READ_COMMITTED} or {_READ_UNCOMMITTED}")
    return level


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidError(f"option {name} = {text!r}: expected true or false")
    return text == "true"
