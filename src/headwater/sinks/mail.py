"""Mail: changes sent by mail, at least once.

    hw.Mail("ops@example.org", sender="shop@example.org", server="mail.example.org:587", tls="starttls",
            user="shop", password=os.environ["MAIL_PASSWORD"], subject="{query}: {count} changes")

SMTP cannot tell whether a mail without a response was accepted, so after a crash a mail may be sent twice. It then
has the same `Message-ID`, and most mailboxes show it once. The sink stores nothing beyond Spark's checkpoint.
"""

import smtplib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from typing import Any

from headwater.change import Op
from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidError, RefusedError, UnavailableError
from headwater.json_values import json_text
from headwater.sink import Batch, Guarantee, Stream, Writer
from headwater.sinks.notices import ChangeNotice, Notice, check_each, notices, send_all
from headwater.sinks.progress import SinkProgress, next_step

PLAIN, STARTTLS, TLS = "plain", "starttls", "tls"
_PERMANENT_FROM = 500
_SIGNS = {Op.INSERT: "+", Op.UPDATE: "~", Op.DELETE: "-"}


@dataclass(frozen=True, slots=True)
class Mail:
    """Mail through an SMTP server: one for each batch (of up to 500 changes), or for each row.

    `subject` may contain `{query}`, `{count}`, and with `each="row"` the row's columns: `"{product} is low"`.
    """

    to: str | Sequence[str]
    sender: str
    server: str = "localhost:25"
    subject: str = "{query}: {count} changes"
    each: str = "batch"
    tls: str = PLAIN
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_each(self.each)
        if self.tls not in (PLAIN, STARTTLS, TLS):
            raise InvalidError(f"cannot send mail with tls={self.tls!r}: expected 'plain', 'starttls' or 'tls'")
        host, _, port = self.server.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidError(f"cannot send mail through {self.server!r}: expected host:port")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def open(self, stream: Stream) -> Writer:
        """Return a writer; nothing is sent yet, and no earlier writer is fenced."""
        names = dict.fromkeys(stream.schema.names, "") if self.each == "row" else {}
        try:
            self.subject.format(**{**names, "query": "", "count": 0})
        except (KeyError, IndexError, ValueError) as error:
            known = ", ".join(["query", "count", *names])
            raise InvalidError(f"cannot use the subject {self.subject!r}: it may contain {known}") from error
        return _MailWriter(self, stream, SystemClock())


class _MailWriter:
    def __init__(self, sink: Mail, stream: Stream, clock: Clock) -> None:
        self._sink = sink
        self._stream = stream
        self._clock = clock
        self._attempt = f"cannot send mail of {stream.query!r} through {sink.server!r}"
        self._progress: SinkProgress | None = None

    def write(self, batch: Batch) -> bool:
        step = next_step(self._progress, batch, self._stream, f"mail server {self._sink.server!r}")
        if step is None:
            return False
        found = notices(self._stream, batch, each=self._sink.each)
        if found:
            self._send(found)
        self._progress = step.progress
        return True

    def close(self) -> None:
        pass  # Every batch opens its own connection, because servers close idle ones.

    def _message(self, notice: Notice) -> EmailMessage:
        message = EmailMessage()
        recipients = [self._sink.to] if isinstance(self._sink.to, str) else list(self._sink.to)
        message["From"], message["To"] = self._sink.sender, ", ".join(recipients)
        message["Subject"] = " ".join(self._subject(notice).split())  # a line break would end the header
        message["Message-ID"] = f"<{notice.id}@{self._sink.sender.rpartition('@')[2].rstrip('>') or 'headwater'}>"
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        message["Date"] = format_datetime(now)
        message["Auto-Submitted"] = "auto-generated"  # prevents absence notes (RFC 3834)
        lines = [_line(change) for change in notice.changes]
        footer = f"{notice.query}, batch {notice.batch}, part {notice.part + 1} of {notice.parts}"
        message.set_content("\n".join([*lines, "", footer, ""]))
        return message

    def _subject(self, notice: Notice) -> str:
        row: dict[str, Any] = {}
        if self._sink.each == "row":
            (change,) = notice.changes
            row = change.after or change.before or {}
        return self._sink.subject.format(**{**row, "query": notice.query, "count": len(notice.changes)})

    def _send(self, found: Sequence[Notice]) -> None:
        attempt = self._attempt
        try:
            with self._connect() as server:
                send_all(found, partial(self._post, server))
        except smtplib.SMTPRecipientsRefused as error:
            refused = "; ".join(
                f"{address}: {code} {_text(text)}" for address, (code, text) in error.recipients.items()
            )
            permanent = all(code >= _PERMANENT_FROM for code, _ in error.recipients.values())
            raise (InvalidError if permanent else UnavailableError)(f"{attempt}: {refused}") from error
        except smtplib.SMTPResponseException as error:
            kind = InvalidError if error.smtp_code >= _PERMANENT_FROM else UnavailableError
            raise kind(f"{attempt}: {error.smtp_code} {_text(error.smtp_error)}") from error
        except (smtplib.SMTPNotSupportedError, ssl.SSLCertVerificationError) as error:
            raise InvalidError(f"{attempt}: {error}") from error
        except (OSError, smtplib.SMTPException) as error:
            raise UnavailableError(f"{attempt}: {str(error) or type(error).__name__}") from error

    def _post(self, server: smtplib.SMTP, notice: Notice) -> None:
        try:
            refused_by_some = server.send_message(self._message(notice))
        except smtplib.SMTPDataError as error:
            if error.smtp_code < _PERMANENT_FROM:
                raise
            raise RefusedError(f"{self._attempt}: {error.smtp_code} {_text(error.smtp_error)}") from error
        if refused_by_some:
            raise smtplib.SMTPRecipientsRefused(refused_by_some)

    def _connect(self) -> smtplib.SMTP:
        host, _, port = self._sink.server.rpartition(":")
        if self._sink.tls == TLS:
            context = ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, int(port), timeout=self._sink.timeout_s, context=context)
        else:
            server = smtplib.SMTP(host, int(port), timeout=self._sink.timeout_s)
        try:
            if self._sink.tls == STARTTLS:
                server.starttls(context=ssl.create_default_context())
            if self._sink.user is not None:
                server.login(self._sink.user, self._sink.password or "")
        except BaseException:
            server.close()
            raise
        return server


def _line(change: ChangeNotice) -> str:
    """Format a change as a line: the row as it is now, or the deleted row, and for an update the old values."""
    row = change.after if change.after is not None else change.before or {}
    text = ", ".join(f"{name} {_value(value)}" for name, value in row.items())
    if change.op is Op.UPDATE and change.before is not None:
        old = {name: value for name, value in change.before.items() if row.get(name) != value}
        text += " (was " + ", ".join(f"{name} {_value(value)}" for name, value in old.items()) + ")"
    return f"{_SIGNS[change.op]} {text}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _text(error: bytes | str) -> str:
    return error.decode(errors="replace") if isinstance(error, bytes) else error
