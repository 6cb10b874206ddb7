"""Start a broker: `serve` in a running event loop, or `Broker` on a thread of its own.

with hw.Broker() as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
"""

import asyncio
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headwater.clock import Clock, SystemClock
from headwater.errors import ClosedError
from headwater.locks import FolderLock
from headwater.record import TopicPartition
from headwater.transmit.broker.dispatch import respond
from headwater.transmit.broker.node import BrokerSettings, Endpoint, open_node
from headwater.transmit.broker.server import BACKLOG, Listener, Server
from headwater.transmit.transport import listen


async def serve(settings: BrokerSettings, clock: Clock) -> Server:
    """Open the data directory, bind the address, and start the broker."""
    lock = FolderLock(settings.data, "broker.lock", holder="broker")
    listening = None
    try:
        listening = listen(settings.host, settings.port, option="--listen", backlog=BACKLOG)
        host, port = listening.getsockname()[:2]
        node = open_node(settings, Endpoint(host=settings.advertised_host or host, port=port), clock)
    except BaseException:
        if listening is not None:
            listening.close()
        lock.release()
        raise
    return Server(node, Listener(listening, node, respond), lock)


class Broker:
    """A broker; defaults to a free port and a temporary directory, which is deleted when it stops.

    `settings` are fields of BrokerSettings, such as `num_partitions` or `durability`.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        # Settings are checked before the temporary directory is created, so that an error leaves none behind.
        self._settings = BrokerSettings(data=Path(data or "."), host=host, port=port, **settings)
        self._temporary = None if data is not None else tempfile.TemporaryDirectory(prefix="headwater-")
        if self._temporary is not None:
            self._settings = replace(self._settings, data=Path(self._temporary.name))
        self._clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: Server | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The address for Kafka clients."""
        if self._server is None:
            raise ClosedError("the broker is not running: use it in a `with` statement, or call start()")
        endpoint = self._server.endpoint
        return f"{endpoint.host}:{endpoint.port}"

    @property
    def recovered(self) -> list[tuple[TopicPartition, int]]:
        """Partitions that were truncated when the directory was opened, and by how many bytes."""
        return [] if self._server is None else self._server.recovered

    def metrics(self) -> str:
        """Return offsets, lags, request counts and memory in Prometheus' text format."""
        if self._server is None:
            raise ClosedError("the broker is not running: use it in a `with` statement, or call start()")
        return str(self._call(_metrics(self._server)))

    def start(self) -> Self:
        """Start the broker. Raises an error if, for example, the port or the directory is in use."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headwater-broker", daemon=True)
        self._thread.start()
        try:
            self._server = self._call(serve(self._settings, self._clock))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Flush everything to disk and stop."""
        if self._loop is None or self._thread is None:
            return
        if self._server is not None:
            self._call(self._server.close())
            self._server = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _call(self, coroutine: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def _metrics(server: Server) -> str:
    return server.metrics()
