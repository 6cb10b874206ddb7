"""Fetch sessions: requests and responses contain only the partitions that have changed (KIP-227).

A consumer lists its partitions once. The first request has epoch 0, and its response contains all partitions and
the session id; each following request has the next epoch. A request with another epoch gets an error, and the
consumer starts a new session. Sessions do not belong to connections. When there are too many, the one that has
been idle longest is removed. This module uses no clock and no log.
https://cwiki.apache.org/confluence/display/KAFKA/KIP-227
"""

import uuid
from collections import OrderedDict
from collections.abc import Sequence
from random import randrange

from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import (
    NO_SESSION,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

SESSIONS_MAX = 1000
IDLE_S = 120.0
"""Time that an idle session is kept at least. Both values are Kafka's defaults."""
FINAL_EPOCH, FIRST_EPOCH = -1, 0
_EPOCH_MAX = _ID_MAX = 2**31 - 1

Topic = str | uuid.UUID


class FetchSession:
    """The partitions that one consumer reads, and the last offsets that it received for them."""

    def __init__(self, session_id: int, topics: Sequence[FetchTopic]) -> None:
        self.id = session_id
        self.epoch = FIRST_EPOCH + 1
        """The epoch of the next request."""
        self.used_s = 0.0
        self._partitions: dict[Topic, dict[int, FetchPartition]] = {}
        self._sent: dict[tuple[Topic, int], tuple[int, int, int]] = {}
        self._update(topics)

    @property
    def topics(self) -> list[FetchTopic]:
        """All partitions of the session; those that returned records last come last, so that none is starved."""
        return [FetchTopic(topic, list(partitions.values())) for topic, partitions in self._partitions.items()]

    def accept(self, request: FetchRequest) -> Code:
        """Add and remove partitions; return an error if the request does not follow the previous one."""
        if request.session_epoch != self.epoch:
            return Code.INVALID_FETCH_SESSION_EPOCH
        named = [*(topic.topic for topic in request.topics), *(topic for topic, _ in request.forgotten)]
        if named and self._partitions and type(named[0]) is not type(next(iter(self._partitions))):
            return Code.FETCH_SESSION_TOPIC_ID_ERROR  # the consumer has changed from names to ids, or back
        self.epoch = self.epoch % _EPOCH_MAX + 1
        self._update(request.topics)
        for topic, numbers in request.forgotten:
            for number in numbers:
                self._partitions.get(topic, {}).pop(number, None)
                self._sent.pop((topic, number), None)
            if not self._partitions.get(topic, True):
                del self._partitions[topic]
        return Code.NONE

    def response(self, topics: Sequence[FetchedTopic], *, in_full: bool) -> FetchResponse:
        """Return the partitions that have changed, or all of them."""
        changed = []
        for topic, partitions in topics:
            included = [partition for partition in partitions if self._mark_sent(topic, partition) or in_full]
            if included:
                changed.append(FetchedTopic(topic, included))
            if topic in self._partitions and any(partition.records for partition in partitions):
                self._partitions[topic] = self._partitions.pop(topic)
        return FetchResponse(changed, session_id=self.id)

    def _update(self, topics: Sequence[FetchTopic]) -> None:
        for topic, partitions in topics:
            known = self._partitions.setdefault(topic, {})
            for partition in partitions:
                known[partition.partition] = partition

    def _mark_sent(self, topic: Topic, fetched: FetchedPartition) -> bool:
        """Remember the offsets as sent; return True if they have changed, or if there are records or an error."""
        key = (topic, fetched.partition)
        offsets = (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset)
        if fetched.records:
            partitions = self._partitions.get(topic, {})
            if fetched.partition in partitions:
                partitions[fetched.partition] = partitions.pop(fetched.partition)
        if fetched.error:
            self._sent.pop(key, None)  # an error is sent again in every response
        elif not fetched.records and self._sent.get(key) == offsets:
            return False
        else:
            self._sent[key] = offsets
        return True


class FetchSessions:
    """All fetch sessions of a broker."""

    def __init__(self, limit: int = SESSIONS_MAX) -> None:
        self._limit = limit
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, request: FetchRequest, now_s: float) -> FetchSession | Code | None:
        """Return the session that a request continues or starts, or an error; None if there is no session."""
        if request.session_epoch <= FIRST_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._start(request, now_s) if request.session_epoch == FIRST_EPOCH else None
        session = self._sessions.get(request.session_id)
        if session is None:
            return Code.FETCH_SESSION_ID_NOT_FOUND
        error = session.accept(request)
        if error:
            return error
        session.used_s = now_s
        self._sessions.move_to_end(session.id)
        return session

    def _start(self, request: FetchRequest, now_s: float) -> FetchSession | None:
        if len(self._sessions) >= self._limit:
            oldest = next(iter(self._sessions.values()))
            if now_s - oldest.used_s < IDLE_S:
                return None  # the consumer continues without a session
            del self._sessions[oldest.id]
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = randrange(1, _ID_MAX)  # random, so that ids from before a restart are not valid
        session = self._sessions[session_id] = FetchSession(session_id, request.topics)
        session.used_s = now_s
        return session
