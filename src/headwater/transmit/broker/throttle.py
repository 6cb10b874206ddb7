"""Quotas held: a request of a client that may have one is limited, measured, and its answer says how long to rest.

Kafka answers at once and then does not read from the client for as long as the answer's throttle time says;
clients since KIP-219 rest by themselves as well. We do the same, with one difference: a fetch that goes over its
quota gets its records and rests afterwards, where Kafka gives none and has them read again. So a batch that is
larger than the whole window is not asked for again and again.
"""

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, cast

from headwater.security.principal import Principal
from headwater.transmit.broker.node import Node
from headwater.transmit.quotas import QuotaKind
from headwater.transmit.records.file_region import Part
from headwater.transmit.wire.apis import FETCH, PRODUCE, SHARE_FETCH, is_flexible
from headwater.transmit.wire.fetch import FetchRequest
from headwater.transmit.wire.frame import RequestHeader
from headwater.transmit.wire.throttle_time import write_throttle_time

THROTTLE_MS_MAX = 2**31 - 1


class ThrottledParts(list[Part]):
    """The parts of an answer after which its client is to be left unread for `rest_s`."""

    __slots__ = ("rest_s",)

    def __init__(self, parts: list[Part], rest_s: float) -> None:
        super().__init__(parts)
        self.rest_s = rest_s


class ThrottledRequest:
    """One request, from its arrival to its answer."""

    def __init__(self, node: Node, header: RequestHeader, principal: Principal, size: int) -> None:
        self._node = node
        self._header = header
        self._user = principal.name
        self._size = size
        self._spent_s = 0.0
        self._since: float | None = None
        self._is_timed = self._limit(QuotaKind.REQUEST) is not None

    def begin(self, request: Any) -> Any:
        """The request to handle: nobody fetches more at once than their quota's window holds."""
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
        """The work, with the time measured in which it does not wait."""
        self._spent_s, self._since = self._now() - (self._since or 0.0), None
        if not self._is_timed or not isinstance(work, Coroutine):
            return work
        return cast(Awaitable[Any], self._steps(work))

    def end(self, parts: list[Part] | None) -> list[Part] | None:
        """Note what was used and put into the answer how long to rest."""
        header, now = self._header, self._now()
        used: list[tuple[QuotaKind, float]] = []
        if header.api_key == PRODUCE:
            used.append((QuotaKind.PRODUCE, self._size))
        elif header.api_key in (FETCH, SHARE_FETCH):
            used.append((QuotaKind.FETCH, sum(map(len, parts or []))))
        if self._is_timed:
            used.append((QuotaKind.REQUEST, self._spent_s if self._since is None else now - self._since))
        rest_s = max(
            (self._node.quotas.use(kind, self._user, header.client_id, amount, now) for kind, amount in used),
            default=0.0,
        )
        if rest_s <= 0:
            return parts
        slowed = ThrottledParts(parts or [], rest_s)
        if parts and header.api_key in (PRODUCE, FETCH, SHARE_FETCH):
            write_throttle_time(
                slowed,
                header.api_key,
                header.api_version,
                flexible=is_flexible(header.api_key, header.api_version),
                ms=min(round(rest_s * 1000), THROTTLE_MS_MAX),
            )
        return slowed

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
            except BaseException as error:  # above all that the client has left
                step = partial(work.throw, error)

    def _limit(self, kind: QuotaKind) -> int | None:
        return self._node.quotas.burst(kind, self._user, self._header.client_id)

    def _now(self) -> float:
        return self._node.clock.monotonic()
