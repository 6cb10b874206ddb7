"""Brings dead letters back to the topics they came from, each exactly once. Blocking, over any Kafka broker.

Marks are records of one topic, `headwater.redriven`: a `begun` that says under which producer id the record will
be appended, and a `done` with the offset it got. Whoever begins writes first and reads then: the first `begun` of
a redrive is the one that counts, so two who redrive one letter at the same time use the same producer id, and the
broker takes the batch of a producer once. A redrive that was killed in between is finished by the next: the record
is looked for by its header from where the topic ended at the time, and appended if it is not there.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from headwater.clock import Clock
from headwater.errors import InvalidError
from headwater.record import Record, TopicPartition
from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import EARLIEST, LATEST, Client
from headwater.transmit.client.errors import check_code
from headwater.transmit.client.reading import read_records, record_at
from headwater.transmit.groups.settings import DEADLETTER_TOPIC
from headwater.transmit.records.batch import Sender, encode_batch
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
"""How many redrives are begun before the first of them is done."""

KEPT = {"retention.ms": "-1", "cleanup.policy": "delete", "max.message.bytes": str(100 << 20)}
"""Of topics of dead letters: a letter is larger than its record, which its own topic did take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """One redrive of a letter: when it was begun, and where the record went if it was finished."""

    letter: str
    written_ms: int
    """Of the letter: a topic that was deleted and made anew has other letters at the same offsets."""
    time: int
    """1 for the first redrive of the letter."""
    producer_id: int
    target: TopicPartition
    target_end: int
    """Where the target ended before the record was appended."""
    offset: int | None = None

    @property
    def mark(self) -> str:
        """The header by which the record is recognised in its topic."""
        return f"{self.letter}#{self.time}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a letter: `lost` if there is no record to bring back, `before` if it was back already."""

    letter: DeadLetter
    redrive: Redrive | None = None
    before: bool = False

    @property
    def lost(self) -> bool:
        return self.redrive is None


class RedriveMarks:
    """What is known of redrives, read from the log and continued from there."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._at: int | None = None
        self._known: dict[tuple[str, int], dict[int, Redrive]] = {}

    def refresh(self) -> None:
        """Read what was marked since the last time."""
        if self._at is None:
            if MARKS.topic not in self._client.topics([MARKS.topic]):
                return
            self._at = self._client.offsets([MARKS], EARLIEST)[MARKS]
        for record in read_records(self._client, MARKS, self._at):
            self._at = record.offset + 1
            self._take(json.loads(record.value or b"{}"))

    def last(self, letter: DeadLetter) -> Redrive | None:
        """The newest redrive of a letter, finished or not."""
        known = self._known.get(_identity(letter))
        return known[max(known)] if known else None

    def finished(self, letter: DeadLetter) -> bool:
        """Whether a letter's record is back in its topic."""
        last = self.last(letter)
        return last is not None and last.offset is not None

    def append(self, kind: str, redrives: Sequence[Redrive], now_ms: int) -> None:
        """Write marks, durably."""
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
    """The topics that hold dead letters: those of pipelines by their name, those of queues by their settings."""
    there = client.topics()
    found = {name for name in there if name.endswith(SUFFIX)}
    for info in group_client.list_groups(client):
        if info.kind == group_client.SHARE:
            found.add(group_client.group_configs(client, info.id).get(DEADLETTER_TOPIC, ""))
    return sorted(found & set(there))


def letters_of(client: Client, topic: str) -> Iterator[DeadLetter]:
    """The letters of a topic, up to where it ended when we asked."""
    info = client.topics([topic]).get(topic)
    if info is None:
        raise InvalidError(
            f"cannot read dead letters of {topic!r}: there is no such topic", hint="headwater deadletter list"
        )
    for number in sorted(info.leaders):
        place = TopicPartition(topic, number)
        for record in read_records(client, place):
            letter = read_dead_letter(place, record)
            if letter is not None:
                yield letter


def letter_at(client: Client, place: TopicPartition, offset: int) -> DeadLetter:
    """One letter; an InvalidError if there is none at that place."""
    info = client.topics([place.topic]).get(place.topic)
    record = None if info is None or place.partition not in info.leaders else record_at(client, place, offset)
    letter = None if record is None else read_dead_letter(place, record)
    if letter is None:
        raise InvalidError(
            f"there is no dead letter at offset {offset} of {place}",
            hint=f"headwater deadletter list {place.topic}",
        )
    return letter


def original_of(client: Client, letter: DeadLetter) -> Record | None:
    """The record that a letter is about as it stands in its topic, if the log still has it."""
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
    """Append the records of letters to their topics; a letter that is back already is left alone unless `again`.

    `value` takes the place of the record's own.
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
    # Those that somebody else has begun, before or at the same time, may be there already.
    landed = _landed(client, [redrive for redrive, is_ours in begun if not is_ours])
    finished: list[tuple[DeadLetter, Redrive]] = []
    try:
        for letter, (redrive, _) in zip(letters, begun, strict=True):
            offset = landed.get(redrive.mark)
            if offset is None:
                batch = encode_batch(
                    [_marked(records[letter.name], letter, redrive)], producer=Sender(redrive.producer_id, 0, 0)
                )
                offset = client.produce(redrive.target, batch)
            finished.append((letter, replace(redrive, offset=offset)))
    finally:
        if finished:
            marks.append("done", [redrive for _, redrive in finished], clock.now_ms())
    yield from (Outcome(letter=x, redrive=r, before=r.mark in landed) for x, r in finished)


def _begin(
    client: Client, letters: Sequence[DeadLetter], marks: RedriveMarks, now_ms: int
) -> list[tuple[Redrive, bool]]:
    """The redrive that counts for each letter, and whether it is ours; an unfinished one is taken over."""
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
        counts = marks.last(letter)
        assert counts is not None
        begun.append((counts, counts == ours.get(letter.name)))
    return begun


def _landed(client: Client, redrives: Sequence[Redrive]) -> dict[str, int]:
    """Which of these have their record in its topic already, and where."""
    landed = {redrive.mark: redrive.offset for redrive in redrives if redrive.offset is not None}
    unknown = [redrive for redrive in redrives if redrive.offset is None]
    starts: dict[TopicPartition, int] = {}
    for redrive in unknown:
        starts[redrive.target] = min(redrive.target_end, starts.get(redrive.target, redrive.target_end))
    wanted = {redrive.mark.encode() for redrive in unknown}
    for target, start in starts.items():
        for record in read_records(client, target, start):
            mark = dict(record.headers).get(REDRIVEN_HEADER)
            if mark in wanted:
                landed[mark.decode()] = record.offset
    return landed


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
