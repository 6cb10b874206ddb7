"""The records that a query leaves out: those its function failed on, and those redriven for another query.

A record that a query leaves out is in the topic's dead-letter topic, in a dead letter with the query's name, so
the list is derived from the log. A small file caches it, so that a start need not read all dead letters:

    {"read": {"orders.deadletter": 18}, "excluded": {"orders": {"0": [5, 17]}}}
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from headwater.app import Query, Topic
from headwater.files import replacing, write_synced
from headwater.record import LATEST, TopicPartition
from headwater.spark.source.left_out import LeftOut
from headwater.transmit.client.client import Client
from headwater.transmit.client.reading import read_records
from headwater.transmit.records.dead_letters import read_dead_letter


class Exclusions:
    """The records that one query leaves out. `reader` is its name in dead letters, `app.query`."""

    def __init__(self, path: Path, reader: str, topics: Iterable[Topic]) -> None:
        self.reader = reader
        self._path = path
        self._letters = [TopicPartition(topic.dead_letters, 0) for topic in topics]
        known = json.loads(path.read_text()) if path.exists() else {"read": {}, "excluded": {}}
        self._read: dict[str, int] = known["read"]
        self._excluded: dict[TopicPartition, set[int]] = {
            TopicPartition(topic, int(number)): set(offsets)
            for topic, partitions in known["excluded"].items()
            for number, offsets in partitions.items()
        }

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._excluded.values())

    def __contains__(self, record: tuple[TopicPartition, int]) -> bool:
        partition, offset = record
        return offset in self._excluded.get(partition, ())

    def catch_up(self, client: Client) -> None:
        """Read the dead letters that were written since the last call."""
        there = client.topics([letters.topic for letters in self._letters])
        before = json.dumps(self._read)
        for letters in self._letters:
            if letters.topic in there:
                self._take(client, letters)
        if json.dumps(self._read) != before:
            with suppress(OSError):  # The file is only a cache of the log.
                self._save()

    def left_out(self, topic: str) -> LeftOut:
        """Return the records of a topic that the query leaves out."""
        ours = {tp: offsets for tp, offsets in self._excluded.items() if tp.topic == topic}
        places = frozenset((tp.partition, offset) for tp, offsets in ours.items() for offset in offsets)
        return LeftOut(places, self.reader)

    def options(self, topic: str, *, also: Iterable[tuple[TopicPartition, int]] = ()) -> dict[str, str]:
        """Return the source's options for a topic that the query reads; `also` is excluded for this read only."""
        unwanted = {tp: set(offsets) for tp, offsets in self._excluded.items()}
        for tp, offset in also:
            unwanted.setdefault(tp, set()).add(offset)
        ours = {tp: sorted(offsets) for tp, offsets in unwanted.items() if tp.topic == topic}
        options = {"readerName": self.reader}
        if ours:
            options["excludedOffsets"] = json.dumps({topic: {str(tp.partition): ours[tp] for tp in sorted(ours)}})
        return options

    def _take(self, client: Client, letters: TopicPartition) -> None:
        at, end = self._read.get(letters.topic, 0), client.offsets([letters], LATEST)[letters]
        for record in read_records(client, letters, at if at <= end else 0):
            letter = read_dead_letter(letters, record)
            if letter is not None and letter.query == self.reader:
                self._excluded.setdefault(letter.origin, set()).add(letter.origin_offset)
        self._read[letters.topic] = end

    def _save(self) -> None:
        excluded: dict[str, dict[str, list[int]]] = {}
        for tp in sorted(self._excluded):
            excluded.setdefault(tp.topic, {})[str(tp.partition)] = sorted(self._excluded[tp])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._path, self._path.with_suffix(".part")) as temporary:
            write_synced(temporary, json.dumps({"read": self._read, "excluded": excluded}).encode())


def exclusions_of(data: Path, app: str, query: Query, servers: str) -> Exclusions:
    """Read the records that a query of an app leaves out now."""
    exclusions = Exclusions(data / "excluded" / f"{query.name}.json", f"{app}.{query.name}", query.topics)
    with Client(servers) as client:
        exclusions.catch_up(client)
    return exclusions
