"""The broker's server: accepts client connections and runs the broker's periodic tasks. `embedded` starts it."""

import asyncio
import logging
import socket

from headwater.errors import UnavailableError
from headwater.locks import FolderLock
from headwater.record import TopicPartition
from headwater.transmit.broker.connection import CHUNK_BYTES, Connection, Respond
from headwater.transmit.broker.monitoring.metrics import render
from headwater.transmit.broker.monitoring.retention_risk import groups_at_risk
from headwater.transmit.broker.node import Node
from headwater.transmit.groups.settings import CONSUMER_SESSION_MS
from headwater.transmit.topics.group_commit import INTERVAL_S
from headwater.transmit.topics.upkeep import Upkeep
from headwater.transmit.transport import SocketTransport

logger = logging.getLogger(__name__)

EXPIRE_EVERY_S = 0.1
TRANSACTIONS_EVERY_S = 0.5
PRODUCERS_EVERY_S = 60.0
BACKLOG = 512
ACCEPT_RETRY_S = 1.0


class Listener:
    """Accepts client connections until it is closed."""

    def __init__(self, listening: socket.socket, node: Node, respond: Respond) -> None:
        self.connections: set[Connection] = set()
        self._socket = listening
        self._node = node
        self._respond = respond
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop accepting; the open connections stay open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # for example no file descriptor is left; the client stays in the backlog
                logger.error("cannot accept a client: %s; retrying in %s s", error, ACCEPT_RETRY_S)
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(ACCEPT_RETRY_S, self._listen)
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = SocketTransport(client, address[0])
            Connection(transport, self._node, self._respond, self.connections, self._chunk)


class Server:
    """A running broker."""

    def __init__(self, node: Node, listener: Listener, lock: FolderLock) -> None:
        self.endpoint = node.endpoint
        self.recovered = [
            (partition.name, partition.log.recovered_bytes)
            for partition in node.topics.partitions()
            if partition.log.recovered_bytes
        ]
        """Partitions whose last segment was truncated when it was opened, and by how many bytes."""
        self._node = node
        self._listener = listener
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
        """Return the metrics in Prometheus' text format. Call it in the broker's event loop."""
        return render(self._node)

    async def close(self) -> None:
        """Stop listening, disconnect the clients, and close the files."""
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(connection.close() for connection in list(self._listener.connections)))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._node.transactions.close()
        self._upkeep.close()
        await self._node.share_groups.close()
        await self._node.topics.close()
        self._node.catalog.close()
        self._lock.release()

    async def _expire_groups(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            now = self._node.clock.monotonic()
            try:
                self._node.classic_groups.expire(now)
                self._node.consumer_groups.expire(now, self._session_s)
                self._node.share_groups.expire(now)
            except UnavailableError as error:  # a full disk, for example; retried in the next round
                logger.error("cannot expire the members of groups, retrying: %s", error)

    def _session_s(self, group: str) -> float:
        return self._node.share_groups.settings(group).number(CONSUMER_SESSION_MS) / 1000

    async def _sync_logs(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._node.topics.sync_all()

    async def _end_transactions(self) -> None:
        while True:
            try:
                self._node.transactions.tick()  # before the first sleep: finish what a crash interrupted
            except UnavailableError as error:  # a full disk, for example; retried in the next round
                logger.error("cannot expire and complete transactions, retrying: %s", error)
            await asyncio.sleep(TRANSACTIONS_EVERY_S)

    async def _warn_of_retention(self) -> None:
        """Log a warning for each group that will lose records to retention, once for each change of the offset."""
        logged: dict[tuple[str, TopicPartition], int] = {}
        while True:
            node = self._node
            for each in groups_at_risk(node.catalog, node.topics, node.share_groups, node.clock.now_ms()):
                if logged.get((each.group, each.partition)) != each.before:
                    logged[each.group, each.partition] = each.before
                    logger.warning("%s", each)
            await asyncio.sleep(self._node.settings.log_retention_check_interval_ms / 1000)

    async def _expire_producers(self) -> None:
        while True:
            await asyncio.sleep(PRODUCERS_EVERY_S)
            self._node.topics.expire_producers(
                self._node.clock.now_ms(), self._node.settings.producer_id_expiration_ms
            )
