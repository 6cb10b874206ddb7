"""Move dead letters back to the topics they came from, each exactly once. Works with any Kafka broker.

Every redrive is recorded in the topic `headwater.redriven` by two marks: `begun` has the producer id that the
record will be appended with, and `done` has the record's offset. A redrive writes its `begun` mark and then reads
the topic: the first `begun` mark of a redrive counts. So two processes that redrive one letter at the same time
use the same producer id, and the broker deduplicates their batches. A redrive that was killed in between is
completed by the next one, which searches for the record by its header, from the end that the topic had at the
time, and appends it if it is missing.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from headwater.clock import Clock
from headwater.errors import InvalidError
from headwater.record import EARLIEST, LATEST, Record, TopicPartition
from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import Client
from headwater.transmit.client.errors import check_code
from headwater.transmit.client.reading import read_records, record_at
from headwater.transmit.groups.settings import DEADLETTER_TOPIC
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.batch_header import Sender
from headwater.transmit.records.dead_letters import (
    ONLY_HEADER,
    REDRIVEN_HEADER,
    DeadLetter,
    read_dead_letter,
    restore,
)

MARKS = TopicPartition("headwater.redriven", 0)
SUFFIX = ".deadletter"
CHUNK = 200
"""Number of redrives that are begun before the first of them is done."""

KEPT = {"retention.ms": "-1", "cleanup.policy": "delete", "max.message.bytes": str(100 << 20)}
"""Configs of dead-letter topics: a letter is larger than its record, which its own topic accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """One redrive of a letter, begun or done."""

    letter: str
    written_ms: int
    """Timestamp of the letter: a topic that was deleted and recreated has other letters at the same offsets."""
    time: int
    """Number of the redrive of this letter, starting with 1."""
    producer_id: int
    target: TopicPartition
    target_end: int
    """The end of the target partition before the record was appended."""
    offset: int | None = None
    """The offset of the record in the target; None until the redrive is done."""

    @property
    def mark(self) -> str:
        """The value of the header that identifies the record in its topic."""
        return f"{self.letter}#{self.time}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for a letter: `lost` if there is no record to redrive, `before` if it was redriven earlier."""

    letter: DeadLetter
    redrive: Redrive | None = None
    before: bool = False

    @property
    def lost(self) -> bool:
        return self.redrive is None


class RedriveMarks:
    """The recorded redrives, read incrementally from the topic of marks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._at: int | None = None
        self._known: dict[tuple[str, int], dict[int, Redrive]] = {}

    def refresh(self) -> None:
        """Read the marks that were added since the last call."""
        if self._at is None:
            if MARKS.topic not in self._client.topics([MARKS.topic]):
                return
            self._at = self._client.offsets([MARKS], EARLIEST)[MARKS]
        for record in read_records(self._client, MARKS, self._at):
            self._at = record.offset + 1
            self._take(json.loads(record.value or b"{}"))

    def last(self, letter: DeadLetter) -> Redrive | None:
        """Return the newest redrive of a letter, begun or done."""
        known = self._known.get(_identity(letter))
        return known[max(known)] if known else None

    def finished(self, letter: DeadLetter) -> bool:
        """Return True if a letter's record is back in its topic."""
        last = self.last(letter)
        return last is not None and last.offset is not None

    def append(self, kind: str, redrives: Sequence[Redrive], now_ms: int) -> None:
        """Append marks, and wait until they are durable."""
        self._client.create_topic(MARKS.topic, partitions=1, configs=KEPT)
        records = [Record(value=_mark(kind, redrive), timestamp_ms=now_ms) for redrive in redrives]
        self._client.produce(MARKS, encode_batch(records))

    def _take(self, mark: dict[str, Any]) -> None:
        redrives = self._known.setdefault((mark["letter"], mark["writtenMs"]), {})
        redrive = Redrive(
            letter=mark["letter"],
            written_ms=mark["writtenMs"],
            time=mark["time"],
            producer_id=mark["producerId"],
            target=TopicPartition(*mark["target"]),
            target_end=mark["targetEnd"],
            offset=mark["offset"],
        )
        if mark["kind"] == "done" or redrive.time not in redrives:
            redrives[redrive.time] = redrive


def dead_letter_topics(client: Client) -> list[str]:
    """Return the dead-letter topics: of pipelines by their name, and of share groups by their configs."""
    topics = client.topics()
    found = {name for name in topics if name.endswith(SUFFIX)}
    for info in group_client.list_groups(client):
        if info.kind == group_client.SHARE:
            found.add(group_client.group_configs(client, info.id).get(DEADLETTER_TOPIC, ""))
    return sorted(found & set(topics))


def letters_of(client: Client, topic: str) -> Iterator[DeadLetter]:
    """Yield the letters of a topic, up to its current end."""
    info = client.topics([topic]).get(topic)
    if info is None:
        raise InvalidError(
            f"cannot read dead letters of topic {topic!r}: it does not exist", hint="headwater deadletter list"
        )
    for number in sorted(info.leaders):
        partition = TopicPartition(topic, number)
        for record in read_records(client, partition):
            letter = read_dead_letter(partition, record)
            if letter is not None:
                yield letter


def letter_at(client: Client, partition: TopicPartition, offset: int) -> DeadLetter:
    """Return the letter at an offset. Raises InvalidError if there is none."""
    info = client.topics([partition.topic]).get(partition.topic)
    record = (
        None if info is None or partition.partition not in info.leaders else record_at(client, partition, offset)
    )
    letter = None if record is None else read_dead_letter(partition, record)
    if letter is None:
        raise InvalidError(
            f"there is no dead letter at offset {offset} of {partition}",
            hint=f"headwater deadletter list {partition.topic}",
        )
    return letter


def original_of(client: Client, letter: DeadLetter) -> Record | None:
    """Return the original record of a letter, or None if its topic does not have it any more."""
    return record_at(client, letter.origin, letter.origin_offset)


def redrive(
    client: Client,
    letters: Iterable[DeadLetter],
    marks: RedriveMarks,
    clock: Clock,
    *,
    value: bytes | None = None,
    again: bool = False,
) -> Iterator[Outcome]:
    """Append the records of letters to their topics; skip letters that were redriven earlier, unless `again`.

    `value` replaces the value of the record.
    """
    waiting = iter(letters)
    while chunk := list(islice(waiting, CHUNK)):
        marks.refresh()
        back = [letter for letter in chunk if not again and marks.finished(letter)]
        yield from (Outcome(letter=letter, redrive=marks.last(letter), before=True) for letter in back)
        yield from _redrive(client, [letter for letter in chunk if letter not in back], marks, clock, value)


def _redrive(
    client: Client, letters: Sequence[DeadLetter], marks: RedriveMarks, clock: Clock, value: bytes | None
) -> Iterator[Outcome]:
    now_ms = clock.now_ms()
    records: dict[str, Record] = {}
    for letter in letters:
        record = restore(letter, original_of(client, letter), now_ms=now_ms)
        if record is None and value is None:
            yield Outcome(letter=letter)
            continue
        record = record or Record(timestamp_ms=now_ms)
        records[letter.name] = replace(record, value=value) if value is not None else record
    letters = [letter for letter in letters if letter.name in records]
    begun = _begin(client, letters, marks, now_ms)
    # The records of redrives that another process has begun may already be in the topic.
    appended = _find_appended(client, [redrive for redrive, is_ours in begun if not is_ours])
    finished: list[tuple[DeadLetter, Redrive]] = []
    try:
        for letter, (redrive, _) in zip(letters, begun, strict=True):
            offset = appended.get(redrive.mark)
            if offset is None:
                batch = encode_batch(
                    [_marked(records[letter.name], letter, redrive)], producer=Sender(redrive.producer_id, 0, 0)
                )
                offset = client.produce(redrive.target, batch)
            finished.append((letter, replace(redrive, offset=offset)))
    finally:
        if finished:
            marks.append("done", [redrive for _, redrive in finished], clock.now_ms())
    yield from (Outcome(letter=x, redrive=r, before=r.mark in appended) for x, r in finished)


def _begin(
    client: Client, letters: Sequence[DeadLetter], marks: RedriveMarks, now_ms: int
) -> list[tuple[Redrive, bool]]:
    """Return the redrive that counts for each letter, and whether it is ours; begun ones are continued."""
    ends = client.offsets({letter.origin for letter in letters}, LATEST)
    ours: dict[str, Redrive] = {}
    for letter in letters:
        last = marks.last(letter)
        if last is None or last.offset is not None:
            ours[letter.name] = Redrive(
                letter=letter.name,
                written_ms=letter.record.timestamp_ms,
                time=1 if last is None else last.time + 1,
                producer_id=_new_producer(client),
                target=letter.origin,
                target_end=ends[letter.origin],
            )
    if ours:
        marks.append("begun", list(ours.values()), now_ms)
        marks.refresh()
    begun = []
    for letter in letters:
        valid = marks.last(letter)
        assert valid is not None
        begun.append((valid, valid == ours.get(letter.name)))
    return begun


def _find_appended(client: Client, redrives: Sequence[Redrive]) -> dict[str, int]:
    """Return the offsets of the records that are already in their topics, by mark."""
    appended = {redrive.mark: redrive.offset for redrive in redrives if redrive.offset is not None}
    unknown = [redrive for redrive in redrives if redrive.offset is None]
    starts: dict[TopicPartition, int] = {}
    for redrive in unknown:
        starts[redrive.target] = min(redrive.target_end, starts.get(redrive.target, redrive.target_end))
    wanted = {redrive.mark.encode() for redrive in unknown}
    for target, start in starts.items():
        for record in read_records(client, target, start):
            mark = dict(record.headers).get(REDRIVEN_HEADER)
            if mark in wanted:
                appended[mark.decode()] = record.offset
    return appended


def _identity(letter: DeadLetter) -> tuple[str, int]:
    return letter.name, letter.record.timestamp_ms


def _marked(record: Record, letter: DeadLetter, redrive: Redrive) -> Record:
    only = () if letter.query is None else ((ONLY_HEADER, letter.query.encode()),)
    return replace(record, headers=(*record.headers, (REDRIVEN_HEADER, redrive.mark.encode()), *only))


def _mark(kind: str, redrive: Redrive) -> bytes:
    return json.dumps(
        {
            "kind": kind,
            "letter": redrive.letter,
            "writtenMs": redrive.written_ms,
            "time": redrive.time,
            "producerId": redrive.producer_id,
            "target": redrive.target,
            "targetEnd": redrive.target_end,
            "offset": redrive.offset,
        }
    ).encode()


def _new_producer(client: Client) -> int:
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    response = client.call(request)
    check_code(response.error_code, "get a producer id")
    return int(response.producer_id)
