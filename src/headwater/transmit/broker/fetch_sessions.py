"""Fetch sessions: a consumer names its partitions once, and then only what changes; so does the answer (KIP-227).

A session is numbered, and so are its requests: the first has epoch 0 and is answered in full with the session's
id, each following one has the next epoch. A request that does not fit is answered with an error, and the consumer
begins anew. Sessions belong to no connection; of too many, those that rest longest go. Knows no clock and no log.
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
REST_S = 120.0
"""As long a session is kept at least; both are Kafka's defaults."""
FINAL_EPOCH, FIRST_EPOCH = -1, 0
_EPOCH_MAX = _ID_MAX = 2**31 - 1

Topic = str | uuid.UUID


class FetchSession:
    """The partitions that one consumer reads, and what it knows of them."""

    def __init__(self, session_id: int, topics: Sequence[FetchTopic]) -> None:
        self.id = session_id
        self.epoch = FIRST_EPOCH + 1
        """What its next request has to have."""
        self.used_s = 0.0
        self._asked: dict[Topic, dict[int, FetchPartition]] = {}
        self._told: dict[tuple[Topic, int], tuple[int, int, int]] = {}
        self._update(topics)

    @property
    def topics(self) -> list[FetchTopic]:
        """All that it reads, what has had records last standing last: so every partition has its turn."""
        return [FetchTopic(topic, list(partitions.values())) for topic, partitions in self._asked.items()]

    def accept(self, request: FetchRequest) -> Code:
        """Take in what its consumer reads from now on; an error where the request does not follow the last one."""
        if request.session_epoch != self.epoch:
            return Code.INVALID_FETCH_SESSION_EPOCH
        named = [*(topic.topic for topic in request.topics), *(topic for topic, _ in request.forgotten)]
        if named and self._asked and type(named[0]) is not type(next(iter(self._asked))):
            return Code.FETCH_SESSION_TOPIC_ID_ERROR  # it has gone over from names to ids, or back
        self.epoch = self.epoch % _EPOCH_MAX + 1
        self._update(request.topics)
        for topic, numbers in request.forgotten:
            for number in numbers:
                self._asked.get(topic, {}).pop(number, None)
                self._told.pop((topic, number), None)
            if not self._asked.get(topic, True):
                del self._asked[topic]
        return Code.NONE

    def answer(self, topics: Sequence[FetchedTopic], *, in_full: bool) -> FetchResponse:
        """What its consumer does not know yet."""
        told = []
        for topic, answers in topics:
            news = [answer for answer in answers if self._tell(topic, answer) or in_full]
            if news:
                told.append(FetchedTopic(topic, news))
            if topic in self._asked and any(answer.records for answer in answers):
                self._asked[topic] = self._asked.pop(topic)
        return FetchResponse(told, session_id=self.id)

    def _update(self, topics: Sequence[FetchTopic]) -> None:
        for topic, partitions in topics:
            known = self._asked.setdefault(topic, {})
            for asked in partitions:
                known[asked.partition] = asked

    def _tell(self, topic: Topic, answer: FetchedPartition) -> bool:
        """Whether there is something new in an answer; it is known from now on."""
        key = (topic, answer.partition)
        marks = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
        if answer.records:
            partitions = self._asked.get(topic, {})
            if answer.partition in partitions:
                partitions[answer.partition] = partitions.pop(answer.partition)
        if answer.error:
            self._told.pop(key, None)  # said again until it is over
        elif not answer.records and self._told.get(key) == marks:
            return False
        else:
            self._told[key] = marks
        return True


class FetchSessions:
    """The sessions of a broker."""

    def __init__(self, limit: int = SESSIONS_MAX) -> None:
        self._limit = limit
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the one used last stands last

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, request: FetchRequest, now_s: float) -> FetchSession | Code | None:
        """The session that a request continues or begins, or an error; None where there is to be none."""
        if request.session_epoch <= FIRST_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._begin(request, now_s) if request.session_epoch == FIRST_EPOCH else None
        session = self._sessions.get(request.session_id)
        if session is None:
            return Code.FETCH_SESSION_ID_NOT_FOUND
        error = session.accept(request)
        if error:
            return error
        session.used_s = now_s
        self._sessions.move_to_end(session.id)
        return session

    def _begin(self, request: FetchRequest, now_s: float) -> FetchSession | None:
        if len(self._sessions) >= self._limit:
            oldest = next(iter(self._sessions.values()))
            if now_s - oldest.used_s < REST_S:
                return None  # the consumer goes on without one
            del self._sessions[oldest.id]
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = randrange(1, _ID_MAX)  # at random, so that one from before a restart is not taken for it
        session = self._sessions[session_id] = FetchSession(session_id, request.topics)
        session.used_s = now_s
        return session
