"""The connection of one client: receives requests and sends the responses in the order of the requests.

Requests are handled in order. A response may take time (a fetch waits for records, a produce for the disk) while
the following requests are already handled; responses are sent in order. Memory is bounded: the broker does not
read from a connection that has too many unanswered requests or unsent responses, and all connections share a limit
on the memory of requests (`request_memory`).

It does not use asyncio's transports: here many small requests are received in one call, a large request is
received into the buffer it is decoded from, and regions of files are sent without reading them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headwater.errors import InvalidError, UnavailableError
from headwater.security.principal import ANONYMOUS, Principal
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.outbox import Outbox
from headwater.transmit.broker.response import Parts, ThrottledParts
from headwater.transmit.transport import Transport
from headwater.transmit.wire.frame import FRAME_BYTES_MAX, LENGTH

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 64
"""Maximum number of unanswered requests of one connection."""

UNSENT_BYTES_MAX = 64 << 10
"""Unsent bytes of responses above which the broker does not read from a connection."""

CHUNK_BYTES = 128 << 10
"""Bytes to receive at a time while no large request is being received."""

_NOTHING = memoryview(b"")


Respond = Callable[[Node, bytearray, Principal, str, object], Parts | Awaitable[Parts | None] | None]
"""Handles a frame and returns the parts of the response; `dispatch.respond`, for example."""


class _PendingRequest(NamedTuple):
    """A request without a response yet."""

    api_key: int
    size: int
    started: float
    response: asyncio.Future[Parts | None]


class Connection:
    """Handles the requests of one client until it is closed; connections share the receive buffer `chunk`."""

    def __init__(
        self,
        transport: Transport,
        node: Node,
        respond: Respond,
        connections: "set[Connection]",
        chunk: memoryview,
    ) -> None:
        self.principal = ANONYMOUS
        """The identity of the client; authentication replaces it."""
        self._node = node
        self._respond = respond
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._transport = transport
        self._outbox = Outbox(transport)
        self._chunk = chunk
        self._host = f"/{transport.peer}"
        self._rest = _NOTHING  # received, but not yet decoded
        self._frame: bytearray | None = None
        self._filled = 0
        self._announced = 0  # the size of a request that waits for memory
        self._pending: deque[_PendingRequest] = deque()
        self._throttle: asyncio.TimerHandle | None = None  # set while the client exceeds a quota
        self._is_reading = self._is_writing = self._is_ending = self._is_closed = False
        connections.add(self)
        node.counters.connections += 1
        self._balance()

    async def close(self) -> None:
        """Disconnect the client; responses that are not sent yet are discarded."""
        responses = [request.response for request in self._pending]
        self._drop()
        await asyncio.gather(*responses, return_exceptions=True)

    # -- receiving --------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            if self._frame is None:
                count = self._transport.recv_into(self._chunk)
            else:
                count = self._transport.recv_into(memoryview(self._frame)[self._filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop()
            return
        if not count:
            self._end()
        elif self._frame is None:
            self._take(self._chunk[:count])
        else:
            self._filled += count
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._handle(frame)
        self._balance()

    def _take(self, data: memoryview) -> None:
        """Handle the complete requests in the received data, and keep the rest."""
        if self._rest and data is not self._rest:
            data = memoryview(bytes(self._rest) + data)
        at, end = 0, len(data)
        while self._may_handle() and end - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, at)
            if not 0 < size <= FRAME_BYTES_MAX:
                logger.warning(
                    "closing %s: it sent a request of %d bytes, the maximum is %d; is it a Kafka client?",
                    self._host, size, FRAME_BYTES_MAX,
                )  # fmt: skip
                self._end()
                return
            if not self._node.request_memory.acquire(size):
                self._announced = size
                self._node.request_memory.wait(size, self._on_memory)
                break
            at += LENGTH.size
            if size <= end - at:
                self._handle(bytearray(data[at : at + size]))
                at += size
            else:
                self._start_frame(size, data[at:])
                self._rest = _NOTHING
                return
        self._rest = data[at:] if data.obj is not self._chunk.obj else memoryview(bytes(data[at:]))

    def _start_frame(self, size: int, start: memoryview) -> None:
        self._frame = bytearray(size)
        self._frame[: len(start)] = start
        self._filled = len(start)

    def _on_memory(self) -> None:
        """Continue with the announced request, for which memory has been acquired."""
        size, self._announced = self._announced, 0
        data = self._rest[LENGTH.size :]
        self._rest = data[size:]
        if size <= len(data):
            self._handle(bytearray(data[:size]))
        else:
            self._start_frame(size, data)
        self._balance()

    # -- handling ---------------------------------------------------------------------------------------------

    def _handle(self, frame: bytearray) -> None:
        started = self._loop.time()
        size = len(frame)
        self._node.counters.bytes_in += size
        try:
            result = self._respond(self._node, frame, self.principal, self._host, self)
        except Exception as error:
            self._node.request_memory.release(size)
            if isinstance(error, InvalidError | UnavailableError):
                logger.warning("closing %s: %s", self._host, error)
            else:
                logger.exception("closing %s: a request failed", self._host)
            self._end()
            return
        api_key = int.from_bytes(frame[:2], "big")
        if result is None or isinstance(result, list):
            if not self._pending:
                self._put(api_key, size, started, result)
                return
            response: asyncio.Future[Parts | None] = self._loop.create_future()
            response.set_result(result)
        else:
            response = asyncio.ensure_future(result)
            response.add_done_callback(self._on_response)
        self._pending.append(_PendingRequest(api_key, size, started, response))

    def _on_response(self, _: object) -> None:
        """Send the responses that are ready, up to the first one that is not."""
        while self._pending and self._pending[0].response.done():
            request = self._pending.popleft()
            if request.response.cancelled():
                self._node.request_memory.release(request.size)
                continue
            error = request.response.exception()
            if error is not None:
                self._node.request_memory.release(request.size)
                logger.error("closing %s: a request failed", self._host, exc_info=error)
                self._end()
                break
            self._put(request.api_key, request.size, request.started, request.response.result())
        self._balance()

    def _put(self, api_key: int, size: int, started: float, parts: Parts | None) -> None:
        """Put the response into the outbox, and release the memory of the request."""
        self._node.counters.count_request(api_key, self._loop.time() - started)
        if parts and not self._is_ending:
            before = self._outbox.size
            self._outbox.put(parts)
            self._node.counters.bytes_out += self._outbox.size - before
        self._node.request_memory.release(size)
        if isinstance(parts, ThrottledParts):
            self._start_throttle(parts.throttle_s)

    def _start_throttle(self, seconds: float) -> None:
        """Stop reading from a client that exceeds its quota: not every client pauses by itself."""
        until = self._loop.time() + seconds
        if self._throttle is None:
            self._node.counters.throttled += 1
        elif until <= self._throttle.when():
            return
        else:
            self._throttle.cancel()
        self._throttle = self._loop.call_at(until, self._on_throttle_end)

    def _on_throttle_end(self) -> None:
        self._throttle = None
        self._node.counters.throttled -= 1
        self._balance()

    # -- flow control -----------------------------------------------------------------------------------------

    def _may_handle(self) -> bool:
        """Return True if the next request of the client may be handled."""
        return (
            not self._is_ending
            and not self._announced
            and self._throttle is None
            and self._outbox.size <= UNSENT_BYTES_MAX
            and len(self._pending) < IN_FLIGHT_MAX
        )

    def _balance(self) -> None:
        """Send what the transport accepts, handle further requests if possible, and start or stop reading."""
        self._flush()
        while len(self._rest) >= LENGTH.size and self._frame is None and self._may_handle():
            rest = len(self._rest)
            self._take(self._rest)
            self._flush()
            if len(self._rest) == rest:
                break  # the next request is incomplete
        if self._is_closed:
            return
        if self._is_ending and not self._outbox.size:
            self._drop()
            return
        self._watch(reading=self._may_handle(), writing=self._outbox.size > 0)

    def _flush(self) -> None:
        if self._outbox.size and not self._is_closed:
            try:
                self._outbox.send()
            except OSError:
                self._drop()

    def _watch(self, *, reading: bool, writing: bool) -> None:
        if reading != self._is_reading:
            self._is_reading = reading
            self._transport.on_readable(self._on_readable if reading else None)
        if writing != self._is_writing:
            self._is_writing = writing
            self._transport.on_writable(self._balance if writing else None)

    # -- closing ----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Handle no more requests, and close once the responses in the outbox are sent."""
        self._is_ending = True
        self._discard_requests()

    def _drop(self) -> None:
        """Close at once."""
        if self._is_closed:
            return
        self._is_ending = self._is_closed = True
        self._watch(reading=False, writing=False)
        self._discard_requests()
        self._outbox.clear()
        self._transport.close()
        self._connections.discard(self)
        self._node.counters.connections -= 1
        self._node.share_groups.disconnect(self)
        if self._throttle is not None:
            self._throttle.cancel()
            self._node.counters.throttled -= 1

    def _discard_requests(self) -> None:
        held = 0 if self._frame is None else len(self._frame)
        self._frame, self._rest = None, _NOTHING
        for request in self._pending:
            request.response.cancel()
            held += request.size
        self._pending.clear()
        if self._announced:
            self._node.request_memory.cancel(self._on_memory)
            self._announced = 0
        self._node.request_memory.release(held)
