"""One client's connection: frames in, answers out, in the order of the requests.

Requests are handled in order, and each may take its time to be answered (a fetch that waits for records, a produce
that waits for the disk) while the next is already being handled. Answers leave in order. A connection that asks
faster than it is answered, or does not take its answers, is not read from until it has caught up, and all of them
together have only so much room for requests (`intake`), so memory stays bounded.

It works on the socket itself and not on a transport of asyncio: many small requests come in one call, a large one
is received where it is read from, and files are sent without being read.
"""

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from headwater.errors import InvalidError, UnavailableError
from headwater.security.principal import ANONYMOUS
from headwater.transmit.broker import dispatch as broker
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.outbox import Outbox
from headwater.transmit.broker.throttle import ThrottledParts
from headwater.transmit.transport import Transport
from headwater.transmit.wire.frame import FRAME_BYTES_MAX, LENGTH

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 64
"""Requests of one connection that may be waiting for their answer."""

UNSENT_BYTES_MAX = 64 << 10
"""Of one connection's answers: beyond it nothing is read from it."""

CHUNK_BYTES = 128 << 10
"""What is received at a time where no large request is under way."""

_NOTHING = memoryview(b"")


class _Asked(NamedTuple):
    """A request that is being answered."""

    api_key: int
    size: int
    started: float
    answer: asyncio.Future[broker.Parts | None]


class Connection:
    """Answers one client until it is closed. `chunk` is where requests are received; connections share it."""

    def __init__(
        self, transport: Transport, node: Node, connections: "set[Connection]", chunk: memoryview
    ) -> None:
        self.principal = ANONYMOUS
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._transport = transport
        self._outbox = Outbox(transport)
        self._chunk = chunk
        self._host = f"/{transport.peer}"
        self._rest = _NOTHING  # received, but not yet looked at
        self._frame: bytearray | None = None
        self._filled = 0
        self._announced = 0  # the size of a request for which there is no room yet
        self._waiting: deque[_Asked] = deque()
        self._break: asyncio.TimerHandle | None = None  # while its client is above a quota
        self._is_reading = self._is_writing = self._is_ending = self._is_closed = False
        connections.add(self)
        node.counters.connections += 1
        self._balance()

    async def close(self) -> None:
        """Let go of the client; what it has not taken by now is dropped."""
        waiting = [asked.answer for asked in self._waiting]
        self._drop()
        await asyncio.gather(*waiting, return_exceptions=True)

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
        """Handle the requests in what was received; what is left of it waits for more."""
        if self._rest and data is not self._rest:
            data = memoryview(bytes(self._rest) + data)
        at, end = 0, len(data)
        while self._may_handle() and end - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, at)
            if not 0 < size <= FRAME_BYTES_MAX:
                logger.warning(
                    "closing %s: it announced a request of %d bytes, at most %d are taken; is it a Kafka client?",
                    self._host, size, FRAME_BYTES_MAX,
                )  # fmt: skip
                self._end()
                return
            if not self._node.request_memory.take(size):
                self._announced = size
                self._node.request_memory.wait(size, self._on_room)
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

    def _on_room(self) -> None:
        """Go on with the request that was announced; room for it is taken."""
        size, self._announced = self._announced, 0
        data = self._rest[LENGTH.size :]
        self._rest = data[size:]
        if size <= len(data):
            self._handle(bytearray(data[:size]))
        else:
            self._start_frame(size, data)
        self._balance()

    # -- answering --------------------------------------------------------------------------------------------

    def _handle(self, frame: bytearray) -> None:
        started = self._loop.time()
        size = len(frame)
        self._node.counters.bytes_in += size
        try:
            result = broker.respond(self._node, frame, self.principal, self._host, self)
        except Exception as error:
            self._node.request_memory.give_back(size)
            if isinstance(error, InvalidError | UnavailableError):
                logger.warning("closing %s: %s", self._host, error)
            else:
                logger.exception("closing %s: a request failed", self._host)
            self._end()
            return
        api_key = int.from_bytes(frame[:2], "big")
        if result is None or isinstance(result, list):
            if not self._waiting:
                self._put(api_key, size, started, result)
                return
            answer: asyncio.Future[broker.Parts | None] = self._loop.create_future()
            answer.set_result(result)
        else:
            answer = asyncio.ensure_future(result)
            answer.add_done_callback(self._on_answered)
        self._waiting.append(_Asked(api_key, size, started, answer))

    def _on_answered(self, _: object) -> None:
        """Send what is ready, up to the first answer that is not."""
        while self._waiting and self._waiting[0].answer.done():
            asked = self._waiting.popleft()
            if asked.answer.cancelled():
                self._node.request_memory.give_back(asked.size)
                continue
            error = asked.answer.exception()
            if error is not None:
                self._node.request_memory.give_back(asked.size)
                logger.error("closing %s: a request failed", self._host, exc_info=error)
                self._end()
                return
            self._put(asked.api_key, asked.size, asked.started, asked.answer.result())
        self._balance()

    def _put(self, api_key: int, size: int, started: float, parts: broker.Parts | None) -> None:
        """Have the answer sent; with that the request is over."""
        self._node.counters.note_request(api_key, self._loop.time() - started)
        if parts and not self._is_ending:
            before = self._outbox.size
            self._outbox.put(parts)
            self._node.counters.bytes_out += self._outbox.size - before
        self._node.request_memory.give_back(size)
        if isinstance(parts, ThrottledParts):
            self._start_break(parts.rest_s)

    def _start_break(self, seconds: float) -> None:
        """Do not read from a client that is above its quota: not all of them rest by themselves."""
        until = self._loop.time() + seconds
        if self._break is None:
            self._node.counters.resting += 1
        elif until <= self._break.when():
            return
        else:
            self._break.cancel()
        self._break = self._loop.call_at(until, self._on_rested)

    def _on_rested(self) -> None:
        self._break = None
        self._node.counters.resting -= 1
        self._balance()

    # -- keeping up -------------------------------------------------------------------------------------------

    def _may_handle(self) -> bool:
        """Whether the client keeps up, and there is room for what it sends."""
        return (
            not self._is_ending
            and not self._announced
            and self._break is None
            and self._outbox.size <= UNSENT_BYTES_MAX
            and len(self._waiting) < IN_FLIGHT_MAX
        )

    def _balance(self) -> None:
        """Send what can be sent, handle what that makes room for, and then read only while the client keeps up."""
        self._flush()
        while len(self._rest) >= LENGTH.size and self._frame is None and self._may_handle():
            rest = len(self._rest)
            self._take(self._rest)
            self._flush()
            if len(self._rest) == rest:
                break  # the next request is not here as a whole
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

    # -- the end ----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Take no more requests, and close when what was answered is sent."""
        self._is_ending = True
        self._forget_requests()

    def _drop(self) -> None:
        """Close now."""
        if self._is_closed:
            return
        self._is_ending = self._is_closed = True
        self._watch(reading=False, writing=False)
        self._forget_requests()
        self._outbox.clear()
        self._transport.close()
        self._connections.discard(self)
        self._node.counters.connections -= 1
        self._node.share_groups.disconnect(self)
        if self._break is not None:
            self._break.cancel()
            self._node.counters.resting -= 1

    def _forget_requests(self) -> None:
        held = 0 if self._frame is None else len(self._frame)
        self._frame, self._rest = None, _NOTHING
        for asked in self._waiting:
            asked.answer.cancel()
            held += asked.size
        self._waiting.clear()
        if self._announced:
            self._node.request_memory.forget(self._on_room)
            self._announced = 0
        self._node.request_memory.give_back(held)
