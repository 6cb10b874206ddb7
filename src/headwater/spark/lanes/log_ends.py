"""Looks up where the topics that a lane reads begin and end."""

import time
from collections.abc import Iterable, Sequence

from headwater.errors import InvalidError, UnavailableError
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.spark.source.offsets import Offsets
from headwater.transmit.client.client import Client

NEW_PARTITIONS_S = 1.0


class UnreadableTopicError(InvalidError):
    """Topics cannot be read: queries that read others go on."""

    def __init__(self, topics: Iterable[str], message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.topics = frozenset(topics)


class LogEnds:
    """The ends of the topics that a lane reads, on a connection of its own."""

    def __init__(self, servers: str) -> None:
        self.client = Client(servers, read_committed=True)
        self._partitions: dict[str, list[TopicPartition]] = {}
        self._looked_at = 0.0

    def latest(self, topics: Sequence[str]) -> Offsets:
        """Return the end of each partition; new partitions are found within a second."""
        now = time.monotonic()
        if now > self._looked_at + NEW_PARTITIONS_S or any(name not in self._partitions for name in topics):
            found = self.client.topics(topics)
            missing = [name for name in topics if name not in found]
            if missing:
                raise UnreadableTopicError(
                    missing,
                    f"cannot read topic {', '.join(map(repr, missing))}: it does not exist; create it: "
                    f"headwater topic create {missing[0]}",
                )
            self._partitions = {
                name: [TopicPartition(name, n) for n in info.leaders] for name, info in found.items()
            }
            self._looked_at = now
        return self._offsets([tp for name in topics for tp in self._partitions[name]], LATEST)

    def earliest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the first offset of each partition."""
        return self._offsets(partitions, EARLIEST) if partitions else {}

    def _offsets(self, partitions: Sequence[TopicPartition], at: int) -> Offsets:
        try:
            return self.client.offsets(partitions, at)
        except UnavailableError:
            self.client.forget_leaders({tp.topic for tp in partitions})  # They may have changed.
            raise

    def close(self) -> None:
        self.client.close()
