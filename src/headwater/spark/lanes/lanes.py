"""The lanes of an app: which queries advance together.

The *front* is the lane that follows the log. A query far behind it, because it is new, or was suspended, or is
computed again, catches up in a lane of its own. When it is near, it joins the front, where the others wait while
it reads the last records. A query whose sink or function is slow stays in a lane of its own, so that no other
waits for it.
"""

import threading
from collections.abc import Sequence
from functools import cache

from pyspark.sql import SparkSession

from headwater.app import Topic
from headwater.clock import Clock
from headwater.spark.lanes.batch_run import StagePlans
from headwater.spark.lanes.lane import STOP_S, Lane, LaneSettings
from headwater.spark.lanes.member import LaneQuery, Member
from headwater.spark.lanes.positions import distance
from headwater.spark.lanes.records import TopicDecoder
from headwater.spark.lanes.steps.blueprint import Drawings
from headwater.spark.lanes.steps.stage_plan import LaneSession
from headwater.spark.lanes.writing import BatchWrite
from headwater.spark.source.offsets import Offsets
from headwater.store.views import ViewStore

NEAR_RECORDS = 5_000
"""Records behind the front from which on a query joins it."""


class Lanes:
    """Starts and stops queries in lanes. Until `release`, started queries wait for each other."""

    def __init__(self, spark: SparkSession, store: ViewStore, servers: str, clock: Clock, *, once: bool) -> None:
        small, large = LaneSession(spark, small=True), LaneSession(spark, small=False)

        @cache
        def decoder(topic: Topic) -> TopicDecoder:
            return TopicDecoder(topic, small, large, servers)

        self.drawings = Drawings(small.spark)
        """In which the queries are drawn."""
        self._settings = LaneSettings(
            plans=StagePlans(small, large), store=store, servers=servers, clock=clock, once=once, decoder=decoder
        )
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._waiting: list[Member] | None = []
        self._is_closing = False

    def start(self, member: Member) -> LaneQuery:
        """Start a query, in the front lane if it is there."""
        member.query.on_stop = lambda: self._wake(member)
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(member)
                return member.query
            front = self._front()
        if front is not None and not self._settings.once and not member.is_slow:
            with front.between_batches():
                # How far it is from the end of a topic that the front does not read is found in a lane of its own.
                is_known = member.topics.keys() <= front.topics
                is_near = distance(member.next_position, front.position) <= NEAR_RECORDS
                if not front.is_ended and is_known and is_near:
                    front.members.append(member)
                    front.wake()
                    return member.query
        self._open([member])
        return member.query

    def release(self) -> None:
        """Begin: each group of queries that are near each other gets a lane."""
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
        groups: list[list[Member]] = []
        for member in waiting:
            group = next((group for group in groups if all(_fits(member, other) for other in group)), None)
            if group is None:
                groups.append([member])
            else:
                group.append(member)
        for group in sorted(groups, key=len, reverse=True):
            self._open(group)

    def close(self) -> None:
        """Stop all lanes between two batches, the queries of each lane after the same one."""
        with self._lock:
            self._is_closing = True  # From now on, no query joins another lane.
        stopped: list[Lane] = []
        while lanes := self._others(stopped):  # A query whose sink is slow may have left one in the meantime.
            for lane in lanes:
                lane.ask_to_stop()
            for lane in lanes:
                lane.join()
            stopped += lanes
        self._settings.plans.small.close()
        self._settings.plans.large.close()

    def _wake(self, member: Member) -> None:
        """Let the lane of a query find out that it is to stop."""
        with self._lock:
            lanes = list(self._lanes)
            if self._waiting is not None and member in self._waiting:
                self._waiting.remove(member)
                member.query.end()
        for lane in lanes:
            if member in lane.members:
                lane.wake()
                if len(lane.members) == 1:
                    self._cancel_later(lane, member)

    def _cancel_later(self, lane: Lane, member: Member) -> None:
        """Cancel the batch of a query that is to stop, if it takes long; it runs again after the next start."""

        def cancel() -> None:
            if member.query.isActive:
                lane.jobs.cancel()

        timer = threading.Timer(STOP_S, cancel)
        timer.daemon = True
        timer.start()

    def _open(self, members: Sequence[Member], unfinished: BatchWrite | None = None) -> None:
        lane = Lane(members, self._settings, self._on_turn, self._on_leave, unfinished)
        with self._lock:
            self._lanes = [*(each for each in self._lanes if not each.is_ended), lane]
        lane.start()

    def _others(self, lanes: Sequence[Lane]) -> list[Lane]:
        with self._lock:
            return [lane for lane in self._lanes if lane not in lanes]

    def _front(self) -> Lane | None:
        """Return the lane that is ahead of all others; of several, the one that began first."""
        lanes = [lane for lane in self._lanes if not lane.is_ended and not any(m.is_slow for m in lane.members)]
        positions = [lane.position for lane in lanes]
        for lane, position in zip(lanes, positions, strict=True):
            if not any(_behind(position, other) for other in positions):
                return lane
        return lanes[0] if lanes else None

    def _on_leave(self, member: Member, write: BatchWrite | None) -> None:
        """Open a lane for a query that leaves another one in a batch, which its sink may still write."""
        self._open([member], write)

    def _on_turn(self, lane: Lane) -> None:
        """Let a lane join the front if it is near."""
        if self._settings.once or any(member.is_slow for member in lane.members):
            return
        with self._lock:
            front = self._front()
        if front is None or front is lane:
            return
        if not _is_near(lane, front):
            return
        with front.between_batches():
            if front.is_ended or self._is_closing or not _is_near(lane, front):
                return
            with self._lock:  # `_wake` looks for the lane of a query.
                joining = list(lane.members)
                front.members += joining
                lane.members.clear()
        front.wake()


def _behind(position: Offsets, front: Offsets) -> int:
    return sum(max(0, at - position.get(tp, 0)) for tp, at in front.items() if tp in position)


def _is_near(lane: Lane, front: Lane) -> bool:
    """Return whether a lane has read nearly as much as the front, and the topics that the front does not read."""
    own = {tp: at for tp, at in lane.latest.items() if tp.topic not in front.topics}
    return distance(lane.position, {**own, **front.position}) <= NEAR_RECORDS


def _fits(one: Member, other: Member) -> bool:
    """Return whether two queries can begin in one lane, where one soon reaches the position of the other.

    A new query over topics that the other does not read may have all their records before it.
    """
    if one.is_slow or other.is_slow:
        return False
    if one.is_new != other.is_new:
        new, old = (one, other) if one.is_new else (other, one)
        if not new.topics.keys() <= old.topics.keys():
            return False
    return distance(one.next_position, other.next_position) <= NEAR_RECORDS
