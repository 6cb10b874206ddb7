"""Enforcement of quotas: limits and measures requests, and sets the throttle time of their responses.

As in Kafka, the broker responds at once and then does not read from the client during the throttle time; clients
since KIP-219 also pause by themselves. There is one difference: a fetch that exceeds its quota still returns its
records, and the client is throttled afterwards. Kafka returns no records and makes the client fetch again, which
never ends for a batch that is larger than the whole window.
"""

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, cast

from headwater.security.principal import Principal
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.response import ThrottledParts
from headwater.transmit.quotas import QuotaKind
from headwater.transmit.records.file_region import Part
from headwater.transmit.wire.apis import FETCH, PRODUCE, SHARE_FETCH, is_flexible
from headwater.transmit.wire.fetch import FetchRequest
from headwater.transmit.wire.frame import RequestHeader
from headwater.transmit.wire.throttle_time import write_throttle_time

THROTTLE_MS_MAX = 2**31 - 1


class ThrottledRequest:
    """A request whose client may have a quota, from its arrival to the response."""

    def __init__(self, node: Node, header: RequestHeader, principal: Principal, size: int) -> None:
        self._node = node
        self._header = header
        self._user = principal.name
        self._size = size
        self._spent_s = 0.0
        self._since: float | None = None
        self._is_timed = self._limit(QuotaKind.REQUEST) is not None

    def begin(self, request: Any) -> Any:
        """Return the request to handle: a fetch is limited to the bytes that the quota allows in one window."""
        self._since = self._now()
        burst = self._limit(QuotaKind.FETCH) if self._header.api_key in (FETCH, SHARE_FETCH) else None
        if burst is None:
            return request
        max_bytes, min_bytes = min(request.max_bytes, burst), min(request.min_bytes, burst)
        if isinstance(request, FetchRequest):
            return request._replace(max_bytes=max_bytes, min_bytes=min_bytes)
        request.max_bytes, request.min_bytes = max_bytes, min_bytes
        return request

    def timed(self, work: Awaitable[Any]) -> Awaitable[Any]:
        """Return an awaitable that does the work and measures the time in which it does not wait."""
        self._spent_s, self._since = self._now() - (self._since or 0.0), None
        if not self._is_timed or not isinstance(work, Coroutine):
            return work
        return cast(Awaitable[Any], self._steps(work))

    def end(self, parts: list[Part] | None) -> list[Part] | None:
        """Record the usage, and set the throttle time of the response."""
        header, now = self._header, self._now()
        used: list[tuple[QuotaKind, float]] = []
        if header.api_key == PRODUCE:
            used.append((QuotaKind.PRODUCE, self._size))
        elif header.api_key in (FETCH, SHARE_FETCH):
            used.append((QuotaKind.FETCH, sum(map(len, parts or []))))
        if self._is_timed:
            used.append((QuotaKind.REQUEST, self._spent_s if self._since is None else now - self._since))
        throttle_s = max(
            (self._node.quotas.use(kind, self._user, header.client_id, amount, now) for kind, amount in used),
            default=0.0,
        )
        if throttle_s <= 0:
            return parts
        throttled = ThrottledParts(parts or [], throttle_s)
        if parts and header.api_key in (PRODUCE, FETCH, SHARE_FETCH):
            write_throttle_time(
                throttled,
                header.api_key,
                header.api_version,
                flexible=is_flexible(header.api_key, header.api_version),
                ms=min(round(throttle_s * 1000), THROTTLE_MS_MAX),
            )
        return throttled

    @types.coroutine
    def _steps(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            started = self._now()
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            finally:
                self._spent_s += self._now() - started
            try:
                yield waits_for
                step = partial(work.send, None)
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # usually CancelledError: the client has disconnected
                step = partial(work.throw, error)

    def _limit(self, kind: QuotaKind) -> int | None:
        return self._node.quotas.burst(kind, self._user, self._header.client_id)

    def _now(self) -> float:
        return self._node.clock.monotonic()
