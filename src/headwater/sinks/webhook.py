"""Webhook: changes sent to another program by HTTP, at least once.

    hw.Webhook("https://example.org/orders", headers={"Authorization": "Bearer ..."})

A request without a 2xx response is sent again, and after a crash a batch that was answered may be sent again
too: HTTP cannot do better. Each request has the header `Idempotency-Key`, which stays the same when it is
repeated, so a receiver that remembers the keys it has seen processes every request once. The sink stores nothing
beyond Spark's checkpoint; two pipelines of one name would both send, with the keys of their own runs.
"""

import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urlsplit

from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidError, RefusedError, UnavailableError
from headwater.json_values import json_text
from headwater.sink import Batch, Guarantee, Stream, Writer
from headwater.sinks.notices import Notice, check_each, notices, send_all
from headwater.sinks.progress import SinkProgress, next_step

IDEMPOTENCY_KEY = "Idempotency-Key"
_TRANSIENT = (408, 425, 429)
_REFUSED = (400, 413, 422)
"""Statuses for which the content of this request is at fault; other requests may be accepted."""
_WAIT_MAX_S = 60.0
"""Total time to wait as `Retry-After` asks; after that the whole batch is retried."""
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that accepts JSON by POST: one request for each batch (of up to 500 changes), or for each row."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    each: str = "batch"
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_each(self.each)
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidError(f"cannot send to {self.url!r}: expected http://... or https://...")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def open(self, stream: Stream) -> Writer:
        """Return a writer; nothing is sent yet, and no earlier writer is fenced."""
        return _WebhookWriter(self, stream, SystemClock())


class _WebhookWriter:
    def __init__(self, sink: Webhook, stream: Stream, clock: Clock) -> None:
        self._sink = sink
        self._stream = stream
        self._clock = clock
        self._parts = urlsplit(sink.url)
        self._connection = _connection(self._parts, sink.timeout_s)
        self._progress: SinkProgress | None = None

    def write(self, batch: Batch) -> bool:
        step = next_step(self._progress, batch, self._stream, repr(self._sink.url))
        if step is None:
            return False
        send_all(notices(self._stream, batch, each=self._sink.each), self._send)
        self._progress = step.progress
        return True

    def close(self) -> None:
        self._connection.close()

    def _send(self, notice: Notice) -> None:
        body = json_text(notice.as_json()).encode()
        waited_s = 0.0
        while True:
            status, text, pause_s = self._post(notice.id, body)
            if 200 <= status < 300:
                return
            attempt = f"cannot send batch {notice.batch} of {notice.query!r} to {self._sink.url!r}"
            found = f"{attempt}: the response is {status} {text[:_SHOWN_CHARS]}".rstrip()
            if status in _REFUSED:
                raise RefusedError(found)
            if status not in _TRANSIENT and status < 500:
                raise InvalidError(
                    found,
                    hint="a retry would be refused again: fix the receiver, or the sink's URL and headers",
                )
            if pause_s is None or waited_s + pause_s > _WAIT_MAX_S:
                raise UnavailableError(found)
            time.sleep(pause_s)
            waited_s += pause_s

    def _post(self, key: str, body: bytes) -> tuple[int, str, float | None]:
        """Return the response's status and text, and the seconds to wait that it asks for."""
        target = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        headers = {"Content-Type": "application/json", IDEMPOTENCY_KEY: key, **self._sink.headers}
        try:
            self._connection.request("POST", target, body, headers)
            response = self._connection.getresponse()
            text = response.read().decode(errors="replace")
            location = response.getheader("Location")
            moved = f"(moved to {location}) " if location else ""
            return response.status, moved + text, self._pause(response.getheader("Retry-After"))
        except ssl.SSLCertVerificationError as error:
            raise InvalidError(f"cannot send to {self._sink.url!r}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = str(error) or type(error).__name__
            raise UnavailableError(f"cannot send to {self._sink.url!r}: {reason}") from error

    def _pause(self, retry_after: str | None) -> float | None:
        """Return the seconds of a `Retry-After` header, which has a number or a date."""
        if retry_after is None:
            return None
        if retry_after.strip().isdigit():
            return float(retry_after)
        try:
            at_ms = parsedate_to_datetime(retry_after).timestamp() * 1000
        except ValueError:
            return None
        return max(0.0, (at_ms - self._clock.now_ms()) / 1000)


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection that opens on first use, and again after it was closed."""
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s)
