"""Wait until a partition has records to read, with the broker's long poll.

    with RecordWaiter(servers, read_committed=True) as waiter:
        while not stopping:
            if waiter.wait({TopicPartition("orders", 0): 17}, timeout_s=10):
                ...                                        # look up the latest offsets, and read
    waiter.interrupt()                                     # in another thread, to stop

Each node gets one Fetch request for all partitions that it leads, and answers when one of them has a record or
after _LONG_POLL_MS. A request that is unanswered when `wait` returns is left to the next call, so calls with the
same positions and a short timeout cost nothing.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from headwater.errors import InvalidError, UnavailableError
from headwater.record import TopicPartition
from headwater.transmit.client.client import Client
from headwater.transmit.client.connection import ConnectionPool
from headwater.transmit.client.fetching import FetchLimits, fetch_request, fetched_partitions
from headwater.transmit.client.interrupt import Interrupt, Interrupted
from headwater.transmit.transport import Address
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import READ_COMMITTED

Positions = Mapping[TopicPartition, int]

_TIMEOUT_S = 5.0
"""Timeout of connecting, of metadata requests, and of a response after its long poll has ended."""

_LONG_POLL_MS = 10_000
_ONE_BATCH = 1  # bytes; a broker returns at least one whole batch
_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0


class RecordWaiter:
    """Waits for records of any number of partitions, on connections of its own.

    Only `interrupt` may be called from other threads.
    """

    def __init__(
        self, bootstrap_servers: str, *, client_id: str = "headwater", read_committed: bool = False
    ) -> None:
        """With `read_committed`, records count once no transaction before them is open."""
        self._interrupt = Interrupt()
        connect = self._interrupt.connect
        self._client = Client(
            bootstrap_servers,
            client_id=client_id,
            timeout_s=_TIMEOUT_S,
            read_committed=read_committed,
            connect=connect,
        )
        # Not the client's connections: on those, metadata would have to wait for the end of a long poll.
        self._connections = ConnectionPool(client_id, connect, _TIMEOUT_S)
        self._polls: dict[Address, _Poll] = {}

    def wait(self, positions: Positions, timeout_s: float) -> bool:
        """Wait until a partition has a record at or after its position; False at the timeout or an interrupt.

        Also returns True if a partition was deleted or does not have the offset: reading it raises an error. While
        a broker is unavailable, `wait` reconnects until the timeout. Control records count as records: the end of
        a transaction wakes readers of committed records, also if it is aborted, but its beginning does not.
        """
        try:
            self._drop_outdated(positions)
            return self._wait(positions, time.monotonic() + timeout_s)
        except Interrupted:
            self._disconnect()  # the interrupted call may have left a part of a request or response
            self._interrupt.reset()
            return False

    def interrupt(self) -> None:
        """End the current wait, or the next one if there is none, at once. May be called from any thread."""
        self._interrupt.trigger()

    def close(self) -> None:
        self._disconnect()
        self._interrupt.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _wait(self, positions: Positions, deadline: float) -> bool:
        failed: set[TopicPartition] = set()
        pause_s, retry_at = _PAUSE_S, deadline
        while (now := time.monotonic()) < deadline:
            if failed and now >= retry_at:
                self._client.forget_leaders({tp.topic for tp in failed})
                failed.clear()
            failed_before = len(failed)
            try:
                failed |= self._poll({tp: at for tp, at in positions.items() if tp not in failed})
                wake_at = min(deadline, retry_at, *(poll.overdue_at for poll in self._polls.values()))
                try:
                    ready = self._ready(wake_at - now if len(failed) == failed_before else 0.0)
                except Interrupted:  # nothing was interrupted but the long polls, which can continue
                    self._interrupt.reset()
                    return False
                for address in ready:
                    failed |= self._receive(address)
            except _Found:
                return True
            failed |= self._drop_overdue()
            if len(failed) > failed_before:
                retry_at = min(deadline, time.monotonic() + pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            elif not failed:
                retry_at = deadline
        return False

    def _poll(self, wanted: Positions) -> set[TopicPartition]:
        """Send a long poll for the partitions that have none; return those whose leader cannot be reached."""
        polled = {tp for poll in self._polls.values() for tp in poll.positions}
        missing = {tp: at for tp, at in wanted.items() if tp not in polled}
        if not missing:
            return set()
        leaders, failed = self._by_leader(missing)
        for address, partitions in leaders.items():
            poll = self._polls.get(address)
            if poll is not None:  # a node answers one request after the other, so there can be only one long poll
                partitions = {**poll.positions, **partitions}
                self._drop(address)
            limits = FetchLimits(_LONG_POLL_MS, _ONE_BATCH, _ONE_BATCH)
            request = fetch_request(partitions, limits, isolation_level=self._client.isolation_level)
            try:
                sent = self._connections.get(address).send(request)
                self._polls[address] = _Poll(partitions, sent, time.monotonic())
            except (OSError, UnavailableError):
                self._drop(address)
                failed |= partitions.keys()
        return failed

    def _by_leader(self, positions: Positions) -> tuple[dict[Address, Positions], set[TopicPartition]]:
        """Group positions by the address of the leader; the partitions in the set have none at the moment."""
        leaders: dict[Address, dict[TopicPartition, int]] = {}
        failed = set()
        try:
            self._client.find_leaders({tp.topic for tp in positions})
        except UnavailableError:
            return {}, set(positions)
        for tp, at in positions.items():
            try:
                leaders.setdefault(self._client.address(self._leader(tp)), {})[tp] = at
            except UnavailableError:
                failed.add(tp)
        return dict(leaders), failed

    def _leader(self, partition: TopicPartition) -> int:
        try:
            return self._client.leader(partition)
        except InvalidError:
            self._client.forget_leaders([partition.topic])  # the partition may be new
        try:
            return self._client.leader(partition)
        except InvalidError as error:
            raise _Found from error

    def _ready(self, timeout_s: float) -> list[Address]:
        """Wait until a response arrives; return the nodes that have sent one, or have closed the connection."""
        sources = {address: self._connections.get(address) for address in self._polls}
        ready = self._interrupt.wait_readable(sources.values(), timeout_s)
        return [address for address, connection in sources.items() if connection.fileno() in ready]

    def _receive(self, address: Address) -> set[TopicPartition]:
        """Receive the response to a long poll; raise _Found if it has records, else return failed partitions."""
        poll = self._polls.pop(address)
        try:
            response = self._connections.get(address).receive(*poll.sent)
        except OSError:
            self._drop(address)
            return set(poll.positions)
        committed = self._client.isolation_level == READ_COMMITTED
        failed = set()
        for found in fetched_partitions(response):
            if found.error_code not in (Code.NONE, Code.OFFSET_OUT_OF_RANGE):
                failed.add(found.partition)
                continue
            end = found.last_stable_offset if committed else found.high_watermark
            if found.error_code or found.records or end > poll.positions[found.partition]:
                raise _Found
        if not failed and time.monotonic() < poll.sent_at + _LONG_POLL_MS / 2000:
            return set(poll.positions)  # a broker that does not wait, while it throttles this client for example
        return failed

    def _drop_outdated(self, positions: Positions) -> None:
        """Drop the long polls of an earlier call that have other positions."""
        outdated = [a for a, poll in self._polls.items() if not poll.positions.items() <= positions.items()]
        for address in self._ready(0.0) if outdated else ():
            if address in outdated:
                try:
                    self._connections.get(address).receive(*self._polls.pop(address).sent)
                except OSError:
                    self._drop(address)
                outdated.remove(address)
        for address in outdated:
            self._drop(address)

    def _drop_overdue(self) -> set[TopicPartition]:
        now = time.monotonic()
        overdue = [address for address, poll in self._polls.items() if now >= poll.overdue_at]
        failed = {tp for address in overdue for tp in self._polls[address].positions}
        for address in overdue:
            self._drop(address)
        return failed

    def _drop(self, address: Address) -> None:
        self._polls.pop(address, None)
        self._connections.drop(address)

    def _disconnect(self) -> None:
        self._polls.clear()
        self._connections.close()
        self._client.close()


class _Found(Exception):
    """A partition has records, or an error that its reader has to find."""


class _Poll(NamedTuple):
    """A long poll without a response yet."""

    positions: Positions
    sent: tuple[Any, int, int]
    sent_at: float

    @property
    def overdue_at(self) -> float:
        return self.sent_at + _LONG_POLL_MS / 1000 + _TIMEOUT_S
