"""Webhook: changes sent to a program outside by HTTP, at least once.

    hw.Webhook("https://example.org/orders", headers={"Authorization": "Bearer ..."})

What is not answered by 2xx is sent again, and after a crash a batch that was answered may be too: HTTP offers no
way to do better. So each request has the header `Idempotency-Key`, the same when it is sent again, and a receiver
that remembers the keys it has seen gets everything once. Nothing is kept on our side beyond Spark's checkpoint;
two pipelines of one name would both send, with keys of their own runs.
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
_PASSING = (408, 425, 429)
_OF_THE_CONTENT = (400, 413, 422)
"""What says that this request is not taken, where others may be."""
_PATIENCE_S = 60.0
"""How long a receiver may have us wait before the batch is tried from the start."""
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that takes JSON by POST: a request for each batch (of up to 500 changes), or for each row."""

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
        """A writer for the stream; nothing is sent yet, and nobody is fenced."""
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
            found = f"{attempt}: it answers {status} {text[:_SHOWN_CHARS]}".rstrip()
            if status in _OF_THE_CONTENT:
                raise RefusedError(found)
            if status not in _PASSING and status < 500:
                raise InvalidError(found, hint="what it refuses once it will refuse again; mend it there or here")
            if pause_s is None or waited_s + pause_s > _PATIENCE_S:
                raise UnavailableError(found)
            time.sleep(pause_s)
            waited_s += pause_s

    def _post(self, key: str, body: bytes) -> tuple[int, str, float | None]:
        """The answer's status and text, and how long it asks us to wait."""
        target = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        headers = {"Content-Type": "application/json", IDEMPOTENCY_KEY: key, **self._sink.headers}
        try:
            self._connection.request("POST", target, body, headers)
            answer = self._connection.getresponse()
            text = answer.read().decode(errors="replace")
            where = answer.getheader("Location")
            moved = f"(moved to {where}) " if where else ""
            return answer.status, moved + text, self._pause(answer.getheader("Retry-After"))
        except ssl.SSLCertVerificationError as error:
            raise InvalidError(f"cannot send to {self._sink.url!r}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = str(error) or type(error).__name__
            raise UnavailableError(f"cannot send to {self._sink.url!r}: {reason}") from error

    def _pause(self, asked: str | None) -> float | None:
        """How many seconds `Retry-After` means: a number, or a date."""
        if asked is None:
            return None
        if asked.strip().isdigit():
            return float(asked)
        try:
            at_ms = parsedate_to_datetime(asked).timestamp() * 1000
        except ValueError:
            return None
        return max(0.0, (at_ms - self._clock.now_ms()) / 1000)


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    """A connection that is made when it is first used, and again when it was closed."""
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s)
