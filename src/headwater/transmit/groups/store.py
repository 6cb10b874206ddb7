"""Groups on disk, besides their committed offsets: their kinds, their configs, and the state of share groups.

Tables in `meta.db`, next to the catalog's. As with committed offsets, a change survives a crash of the process at
once, and a power failure after about a second. Used from the broker's thread only.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headwater.transmit.groups.share.share_partition import Reason, RecordState, Span
from headwater.transmit.metadb import connect, writing

_SCHEMA = """
create table if not exists group_kinds (group_id text primary key, kind text not null) without rowid;
create table if not exists group_configs (
    group_id text, name text, value text not null, primary key (group_id, name)) without rowid;
create table if not exists shares (
    group_id text, topic_id blob, partition integer, start integer not null, spans text not null,
    primary key (group_id, topic_id, partition)) without rowid;
"""
_REASONS = [None, Reason.REJECTED, Reason.LIMIT]


class GroupKind(StrEnum):
    """The protocol of a group, named as in Kafka's admin tools."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShare:
    """The state of one partition of a share group."""

    group: str
    topic_id: uuid.UUID
    partition: int
    start: int
    spans: tuple[Span, ...]


class GroupStore:
    """The tables of groups in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path, _SCHEMA, synchronous="normal")
        self._kinds = {
            name: GroupKind(kind) for name, kind in self._db.execute("select group_id, kind from group_kinds")
        }
        self._configs: dict[str, dict[str, str]] = {}
        for group, name, value in self._db.execute("select group_id, name, value from group_configs"):
            self._configs.setdefault(group, {})[name] = value

    # -- kinds ------------------------------------------------------------------------------------------------

    def kinds(self) -> dict[str, GroupKind]:
        """Return the kinds of groups of the newer protocols; all others are classic."""
        return self._kinds

    def set_kind(self, group: str, kind: GroupKind) -> None:
        if self._kinds.get(group) is kind:
            return
        with writing(self._db) as db:
            db.execute("insert or replace into group_kinds values (?, ?)", (group, kind.value))
        self._kinds[group] = kind

    def delete(self, group: str) -> None:
        """Delete a group, except for its configs, which Kafka keeps too."""
        with writing(self._db) as db:
            db.execute("delete from group_kinds where group_id = ?", (group,))
            db.execute("delete from shares where group_id = ?", (group,))
        self._kinds.pop(group, None)

    # -- configs ----------------------------------------------------------------------------------------------

    def configs(self, group: str) -> dict[str, str]:
        """Return the configs set on a group, without defaults."""
        return self._configs.get(group, {})

    def configured(self) -> list[str]:
        return sorted(group for group, configs in self._configs.items() if configs)

    def set_configs(self, group: str, configs: dict[str, str]) -> None:
        """Replace the configs set on a group."""
        with writing(self._db) as db:
            db.execute("delete from group_configs where group_id = ?", (group,))
            db.executemany(
                "insert into group_configs values (?, ?, ?)", ((group, *item) for item in configs.items())
            )
        self._configs[group] = dict(configs)

    # -- share partitions -------------------------------------------------------------------------------------

    def shares(self) -> Iterable[StoredShare]:
        found = self._db.execute("select group_id, topic_id, partition, start, spans from shares").fetchall()
        for group, topic_id, partition, start, spans in found:
            yield StoredShare(
                group=group,
                topic_id=uuid.UUID(bytes=topic_id),
                partition=partition,
                start=start,
                spans=tuple(
                    Span(first, last, RecordState(state), count, reason=_REASONS[reason])
                    for first, last, state, count, reason in json.loads(spans)
                ),
            )

    def save_share(self, share: StoredShare) -> None:
        spans = [[s.first, s.last, s.state, s.count, _REASONS.index(s.reason)] for s in share.spans]
        with writing(self._db) as db:
            db.execute(
                "insert or replace into shares values (?, ?, ?, ?, ?)",
                (share.group, share.topic_id.bytes, share.partition, share.start, json.dumps(spans)),
            )

    def delete_shares(self, group: str, topic_id: uuid.UUID) -> None:
        with writing(self._db) as db:
            db.execute("delete from shares where group_id = ? and topic_id = ?", (group, topic_id.bytes))

    def close(self) -> None:
        self._db.close()
