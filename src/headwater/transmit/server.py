"""Sockets around `broker`: frames in, answers out, in the order of the requests.

Requests of one connection are handled in order, and each may take its time to be answered (a fetch that waits
for records, a produce that waits for the disk) while the next is already being handled. Answers leave in order. A
connection that asks faster than it is answered, or does not take its answers, is not read from until it has
caught up, and all of them together have only so much room for requests (`intake`), so memory stays bounded.
"""

import asyncio
import errno
import logging
import socket
import sqlite3
from collections import deque
from dataclasses import dataclass
from typing import cast

from headwater.clock import Clock
from headwater.errors import ConflictError, InvalidError
from headwater.locks import FolderLock
from headwater.record import TopicPartition
from headwater.transmit import broker
from headwater.transmit.danger import endangered
from headwater.transmit.durability import INTERVAL_S
from headwater.transmit.group_configs import CONSUMER_SESSION_MS
from headwater.transmit.metrics import render
from headwater.transmit.node import BrokerSettings, Endpoint, Node, open_node
from headwater.transmit.throttle import Slowed
from headwater.transmit.upkeep import Upkeep
from headwater.transmit.wire.frame import FRAME_BYTES_MAX, LENGTH

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 64
"""Requests of one connection that may be waiting for their answer."""

EXPIRE_EVERY_S = 0.1
TRANSACTIONS_EVERY_S = 0.5
PRODUCERS_EVERY_S = 60.0
BACKLOG = 512


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that is being answered."""

    api_key: int
    size: int
    started: float
    answer: asyncio.Future[broker.Parts | None]


class Connection(asyncio.BufferedProtocol):
    """One client. A frame is received straight into the buffer it is then read from."""

    def __init__(self, node: Node, connections: "set[Connection]") -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._transport: asyncio.Transport
        self._host = "?"
        self._prefix = bytearray(LENGTH.size)
        self._frame: bytearray | None = None
        self._filled = 0
        self._announced = 0  # the size of a request for which there is no room yet
        self._waiting: deque[_Asked] = deque()
        self._is_paused = False
        self._may_write = True
        self._rest: asyncio.TimerHandle | None = None  # while its client is above a quota

    # -- what asyncio calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._host = f"/{peer[0]}" if peer else "?"
        self._connections.add(self)
        self._node.counters.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._node.counters.connections -= 1
        self._node.queues.disconnect(self)
        held = 0 if self._frame is None else len(self._frame)
        self._frame = None
        for asked in self._waiting:
            asked.answer.cancel()
            held += asked.size
        self._waiting.clear()
        if self._announced:
            self._node.intake.forget(self._on_room)
        self._node.intake.give_back(held)
        if self._rest is not None:
            self._rest.cancel()
            self._on_rested()

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._prefix if self._frame is None else self._frame
        return memoryview(target)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            if self._filled == len(self._prefix):
                self._start_frame()
        elif self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            self._handle(frame)

    def pause_writing(self) -> None:
        self._may_write = False
        self._balance()

    def resume_writing(self) -> None:
        self._may_write = True
        self._balance()

    async def close(self) -> None:
        """Let go of the client; what it has not taken by now is dropped."""
        waiting = [asked.answer for asked in self._waiting]
        for answer in waiting:
            answer.cancel()
        self._transport.abort()
        await asyncio.gather(*waiting, return_exceptions=True)

    # -- inside -----------------------------------------------------------------------------------------------

    def _start_frame(self) -> None:
        (size,) = LENGTH.unpack(self._prefix)
        if not 0 < size <= FRAME_BYTES_MAX:
            logger.warning(
                "closing %s: it announced a request of %d bytes, at most %d are taken; is it a Kafka client?",
                self._host, size, FRAME_BYTES_MAX,
            )  # fmt: skip
            self._transport.close()
            return
        if self._node.intake.take(size):
            self._frame = bytearray(size)
            self._filled = 0
        else:
            self._announced = size
            self._node.intake.wait(size, self._on_room)
            self._balance()

    def _on_room(self) -> None:
        """Receive the request that was announced; room for it is taken."""
        self._frame = bytearray(self._announced)
        self._announced = self._filled = 0
        self._balance()

    def _handle(self, frame: bytearray) -> None:
        started = self._loop.time()
        self._node.counters.bytes_in += len(frame)
        try:
            result = broker.answer(self._node, frame, self._host, self)
        except Exception as error:
            self._node.intake.give_back(len(frame))
            if isinstance(error, InvalidError):
                logger.warning("closing %s: %s", self._host, error)
            else:
                logger.exception("closing %s: a request failed", self._host)
            self._transport.close()
            return
        api_key = int.from_bytes(frame[:2], "big")
        if result is None or isinstance(result, list):
            if not self._waiting:
                self._send(api_key, len(frame), started, result)
                return
            answer: asyncio.Future[broker.Parts | None] = self._loop.create_future()
            answer.set_result(result)
        else:
            answer = asyncio.ensure_future(result)
            answer.add_done_callback(self._on_answered)
        self._waiting.append(_Asked(api_key, len(frame), started, answer))
        self._balance()

    def _on_answered(self, _: object) -> None:
        """Send what is ready, up to the first answer that is not."""
        while self._waiting and self._waiting[0].answer.done():
            asked = self._waiting.popleft()
            if asked.answer.cancelled():
                self._node.intake.give_back(asked.size)
                continue
            error = asked.answer.exception()
            if error is not None:
                self._node.intake.give_back(asked.size)
                logger.error("closing %s: a request failed", self._host, exc_info=error)
                self._transport.close()
                return
            self._send(asked.api_key, asked.size, asked.started, asked.answer.result())
        self._balance()

    def _send(self, api_key: int, size: int, started: float, parts: broker.Parts | None) -> None:
        """Give the answer to the socket; with that the request is over."""
        self._node.counters.note_request(api_key, self._loop.time() - started)
        if parts and not self._transport.is_closing():
            self._node.counters.bytes_out += sum(map(len, parts))
            self._transport.writelines(parts)
        self._node.intake.give_back(size)
        if isinstance(parts, Slowed):
            self._start_rest(parts.rest_s)

    def _start_rest(self, seconds: float) -> None:
        """Do not read from a client that is above its quota: not all of them rest by themselves."""
        until = self._loop.time() + seconds
        if self._rest is None:
            self._node.counters.resting += 1
        elif until <= self._rest.when():
            return
        else:
            self._rest.cancel()
        self._rest = self._loop.call_at(until, self._on_rested)
        self._balance()

    def _on_rested(self) -> None:
        self._rest = None
        self._node.counters.resting -= 1
        self._balance()

    def _balance(self) -> None:
        """Read from the client only while it keeps up and there is room for what it sends."""
        keeps_up = self._may_write and not self._announced and len(self._waiting) < IN_FLIGHT_MAX
        keeps_up = keeps_up and self._rest is None
        if keeps_up and self._is_paused:
            self._transport.resume_reading()
        elif not keeps_up and not self._is_paused:
            self._transport.pause_reading()
        self._is_paused = not keeps_up


class Server:
    """Listens for clients until it is closed."""

    def __init__(
        self, node: Node, listener: asyncio.Server, connections: set[Connection], lock: FolderLock
    ) -> None:
        self.endpoint = node.endpoint
        self.recovered = [
            (partition.name, partition.log.recovered_bytes)
            for partition in node.topics.partitions()
            if partition.log.recovered_bytes
        ]
        """Partitions whose last segment was cut when it was opened, and by how many bytes."""
        self._node = node
        self._listener = listener
        self._connections = connections
        self._lock = lock
        self._upkeep = Upkeep(
            node.topics,
            node.clock,
            retention_every_s=node.settings.log_retention_check_interval_ms / 1000,
            clean_every_s=node.settings.log_cleaner_backoff_ms / 1000,
        )
        self._tasks = [
            asyncio.create_task(self._upkeep.run()),
            asyncio.create_task(self._expire_groups()),
            asyncio.create_task(self._sync_logs()),
            asyncio.create_task(self._end_transactions()),
            asyncio.create_task(self._expire_producers()),
            asyncio.create_task(self._warn_of_retention()),
        ]

    def metrics(self) -> str:
        """What Prometheus scrapes; to be called in the broker's loop."""
        return render(self._node)

    async def close(self) -> None:
        """Stop listening, let go of clients, and close the files."""
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(connection.close() for connection in self._connections))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._node.transactions.close()
        self._upkeep.close()
        await self._node.queues.close()
        await self._node.topics.close()
        self._node.catalog.close()
        self._lock.release()

    async def _expire_groups(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            now = self._node.clock.monotonic()
            self._node.groups.expire(now)
            self._node.queues.expire(now)
            self._node.consumers.expire(now, self._session_s)

    def _session_s(self, group: str) -> float:
        return self._node.queues.settings(group).number(CONSUMER_SESSION_MS) / 1000

    async def _sync_logs(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._node.topics.sync_all()

    async def _end_transactions(self) -> None:
        while True:
            try:
                self._node.transactions.tick()  # at once, so that what a crash cut short is finished first
            except sqlite3.Error as error:  # a full disk, say: what could not be noted is tried again
                logger.error("cannot look after transactions: %s", error)
            await asyncio.sleep(TRANSACTIONS_EVERY_S)

    async def _warn_of_retention(self) -> None:
        """Say once of each group that it is about to lose records, as often as that changes."""
        told: dict[tuple[str, TopicPartition], int] = {}
        while True:
            node = self._node
            for each in endangered(node.catalog, node.topics, node.queues, node.clock.now_ms()):
                if told.get((each.group, each.partition)) != each.before:
                    told[each.group, each.partition] = each.before
                    logger.warning("%s", each)
            await asyncio.sleep(self._node.settings.log_retention_check_interval_ms / 1000)

    async def _expire_producers(self) -> None:
        while True:
            await asyncio.sleep(PRODUCERS_EVERY_S)
            self._node.topics.expire_producers(
                self._node.clock.now_ms(), self._node.settings.producer_id_expiration_ms
            )


async def serve(settings: BrokerSettings, clock: Clock) -> Server:
    """Open the data directory, take the address and start to answer."""
    lock = FolderLock(settings.data, "broker.lock", holder="broker")
    listening = None
    try:
        listening = _bind(settings)
        host, port = listening.getsockname()[:2]
        node = open_node(settings, Endpoint(host=settings.advertised_host or host, port=port), clock)
    except BaseException:
        if listening is not None:
            listening.close()
        lock.release()
        raise
    connections: set[Connection] = set()
    listener = await asyncio.get_running_loop().create_server(
        lambda: Connection(node, connections), sock=listening
    )
    return Server(node, listener, connections, lock)


def _bind(settings: BrokerSettings) -> socket.socket:
    address = f"{settings.host}:{settings.port}"
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                f"cannot listen on {address}: the address is in use",
                hint="stop the other program, or choose another port with --listen (port 0 takes a free one)",
            ) from error
        raise InvalidError(f"cannot listen on {address}: {error.strerror or error}") from error
