"""The broker's catalog: topics, committed offsets, configs, quotas and the next producer id.

Tables in the SQLite file `meta.db` in the broker's directory. Changes of topics and producer ids are on disk
before the request is answered. Committed offsets survive a crash of the process at once, and a power failure after
about a second: a group may then read some records again, as at-least-once delivery allows.

Used from the broker's thread only.
"""

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headwater.errors import InvalidError
from headwater.record import TopicPartition
from headwater.transmit.metadb import connect, writing

TOPIC_NAME_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

_SCHEMA = """
create table if not exists topics (
    name text primary key, id blob not null unique, partitions integer not null, configs text not null);
create table if not exists offsets (
    group_id text, topic text, partition integer, offset integer not null, leader_epoch integer not null,
    metadata text, committed_ms integer not null, primary key (group_id, topic, partition)) without rowid;
create table if not exists configs (
    kind integer, name text, configs text not null, primary key (kind, name)) without rowid;
create table if not exists quotas (entity text primary key, quotas text not null) without rowid;
create table if not exists counters (name text primary key, value integer not null);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """A topic in the catalog; `configs` are the values set on it, without defaults."""

    name: str
    id: uuid.UUID
    partitions: int
    configs: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A group's committed offset of a partition, with the client's metadata."""

    offset: int
    leader_epoch: int
    metadata: str | None


class Catalog:
    """The catalog in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._durable = connect(path, _SCHEMA, synchronous="full")
        self._quick = connect(path, _SCHEMA, synchronous="normal")
        self._topics = {entry.name: entry for entry in self._read_topics()}
        self._names: dict[uuid.UUID, str] = {}  # a cache; the topics may have been deleted since

    # -- topics -----------------------------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, TopicEntry]:
        return self._topics

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicEntry | None:
        known = self._topics.get(self._names.get(topic_id, ""))
        if known is not None and known.id == topic_id:
            return known
        self._names = {entry.id: entry.name for entry in self._topics.values()}
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> TopicEntry:
        """Add a new topic."""
        entry = TopicEntry(name=name, id=uuid.uuid4(), partitions=partitions, configs=configs)
        with writing(self._durable) as db:
            db.execute(
                "insert into topics values (?, ?, ?, ?)", (name, entry.id.bytes, partitions, json.dumps(configs))
            )
        self._topics[name] = entry
        return entry

    def grow_topic(self, name: str, partitions: int) -> TopicEntry:
        """Give a topic more partitions."""
        known = self._topics[name]
        with writing(self._durable) as db:
            db.execute("update topics set partitions = ? where name = ?", (partitions, name))
        self._topics[name] = TopicEntry(name=name, id=known.id, partitions=partitions, configs=known.configs)
        return self._topics[name]

    def set_topic_configs(self, name: str, configs: dict[str, str]) -> TopicEntry:
        """Replace the configs that are set on a topic."""
        with writing(self._durable) as db:
            db.execute("update topics set configs = ? where name = ?", (json.dumps(configs), name))
        self._topics[name] = replace(self._topics[name], configs=configs)
        return self._topics[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its committed offsets."""
        with writing(self._durable) as db:
            db.execute("delete from topics where name = ?", (name,))
            db.execute("delete from offsets where topic = ?", (name,))
        del self._topics[name]

    # -- committed offsets ------------------------------------------------------------------------------------

    def commit_offsets(
        self, group: str, offsets: Iterable[tuple[TopicPartition, CommittedOffset]], *, now_ms: int
    ) -> None:
        """Store a group's offsets, all or none."""
        with writing(self._quick) as db:
            db.executemany(
                "insert or replace into offsets values (?, ?, ?, ?, ?, ?, ?)",
                (
                    (group, tp.topic, tp.partition, at.offset, at.leader_epoch, at.metadata, now_ms)
                    for tp, at in offsets
                ),
            )

    def committed_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return all committed offsets of a group."""
        found = self._quick.execute(
            "select topic, partition, offset, leader_epoch, metadata from offsets where group_id = ?",
            (group,),
        )
        return {
            TopicPartition(topic, partition): CommittedOffset(offset=offset, leader_epoch=epoch, metadata=metadata)
            for topic, partition, offset, epoch, metadata in found
        }

    def groups(self) -> list[str]:
        """Return the groups that have committed offsets."""
        return [name for (name,) in self._quick.execute("select distinct group_id from offsets order by 1")]

    def delete_group(self, group: str) -> None:
        """Delete the committed offsets of a group."""
        with writing(self._quick) as db:
            db.execute("delete from offsets where group_id = ?", (group,))

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of a group for some partitions."""
        with writing(self._quick) as db:
            db.executemany(
                "delete from offsets where group_id = ? and topic = ? and partition = ?",
                ((group, tp.topic, tp.partition) for tp in partitions),
            )

    # -- configs of other resources ---------------------------------------------------------------------------

    def configs(self, kind: int) -> dict[str, dict[str, str]]:
        """Return the configs set on resources of a kind, by resource name."""
        found = self._durable.execute("select name, configs from configs where kind = ? order by name", (kind,))
        return {name: json.loads(configs) for name, configs in found}

    def set_configs(self, kind: int, name: str, configs: dict[str, str]) -> None:
        """Replace the configs set on a resource."""
        with writing(self._durable) as db:
            if configs:
                row = (kind, name, json.dumps(configs))
                db.execute("insert or replace into configs values (?, ?, ?)", row)
            else:
                db.execute("delete from configs where kind = ? and name = ?", (kind, name))

    # -- quotas -----------------------------------------------------------------------------------------------

    def quotas(self) -> dict[tuple[str | None, str | None], dict[str, float]]:
        """Return the quotas of users and client ids."""
        found = {}
        for entity, values in self._durable.execute("select entity, quotas from quotas"):
            user, client_id = json.loads(entity)
            found[user, client_id] = json.loads(values)
        return found

    def set_quotas(self, user: str | None, client_id: str | None, values: Mapping[str, float]) -> None:
        """Replace the quotas of a user, a client id, or both together."""
        entity = json.dumps([user, client_id])
        with writing(self._durable) as db:
            if values:
                row = (entity, json.dumps(dict(values)))
                db.execute("insert or replace into quotas values (?, ?)", row)
            else:
                db.execute("delete from quotas where entity = ?", (entity,))

    # -- producer ids -----------------------------------------------------------------------------------------

    def next_producer_id(self) -> int:
        """Return a producer id that was never used before."""
        with writing(self._durable) as db:
            (value,) = db.execute(
                "insert into counters values ('producer_id', 1) "
                "on conflict (name) do update set value = value + 1 returning value"
            ).fetchone()
        return int(value)

    def close(self) -> None:
        self._quick.close()
        self._durable.close()

    def _read_topics(self) -> list[TopicEntry]:
        found = self._durable.execute("select name, id, partitions, configs from topics").fetchall()
        return [
            TopicEntry(name=name, id=uuid.UUID(bytes=id_), partitions=partitions, configs=json.loads(configs))
            for name, id_, partitions, configs in found
        ]


def check_topic_name(name: str) -> None:
    """Raise InvalidError if a name violates Kafka's rules for topic names."""
    if not name or name in (".", ".."):
        raise InvalidError(f"topic name {name!r} is not allowed")
    if len(name) > TOPIC_NAME_MAX:
        raise InvalidError(f"topic name is {len(name)} characters long, at most {TOPIC_NAME_MAX} are allowed")
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidError(f"topic name {name!r} may only contain letters, digits, '.', '_' and '-'")
