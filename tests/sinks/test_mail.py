"""The mail sink, with a small but real SMTP server."""

import socketserver
import threading
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.errors import InvalidError, RefusedError, UnavailableError
from headwater.sink import Batch, Guarantee, Stream

SCHEMA = pa.schema({"product": pa.string(), "left": pa.int64()})
STREAM = Stream(query="shop.low", schema=SCHEMA, key=("product",), changes=True)


def batch_of(number: int, *changes: tuple[str, int, int]) -> Batch:
    rows = pa.table({"product": [p for p, _, _ in changes], "left": [n for _, n, _ in changes]}, schema=SCHEMA)
    return Batch(run="r", number=number, rows=rows, signs=pa.array([s for _, _, s in changes], pa.int8()))


class Postbox:
    """Accepts mail by RFC 5321; `replies` has the replies to commands that are not accepted.

    A mail that contains the text `refuses` is refused.
    """

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[str] = []
        self.replies: dict[str, str] = {}
        self.refuses: str | None = None
        postbox = self

        class Handler(socketserver.StreamRequestHandler):
            def reply(self, line: str) -> None:
                self.wfile.write(line.encode() + b"\r\n")

            def handle(self) -> None:
                self.reply("220 postbox")
                while line := self.rfile.readline().decode().strip():
                    command = line.split()[0].upper()
                    answer = postbox.replies.get(command) or postbox.replies.get(line)
                    if answer:
                        self.reply(answer)
                    elif command == "RCPT":
                        postbox.recipients.append(line)
                        self.reply("250 ok")
                    elif command == "DATA":
                        self.reply("354 continue")
                        self.receive()
                    elif command == "QUIT":
                        self.reply("221 bye")
                        return
                    else:
                        self.reply("250 ok")

            def receive(self) -> None:
                lines = []
                while (line := self.rfile.readline()) != b".\r\n":
                    lines.append(line.removeprefix(b"."))
                answer = postbox.replies.get("END", "250 accepted")
                if postbox.refuses is not None and any(postbox.refuses.encode() in line for line in lines):
                    answer = "554 not this one"
                if answer.startswith("250"):
                    mail: Any = message_from_bytes(b"".join(lines), policy=policy.default)
                    postbox.mails.append(mail)
                self.reply(answer)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def postbox() -> Iterator[Postbox]:
    running = Postbox()
    yield running
    running.stop()


def mail_to(postbox: Postbox, **more: Any) -> hw.Mail:
    return hw.Mail("ops@example.org", sender="shop@example.org", server=postbox.address, **more)


def test_a_batch_is_a_mail_with_its_changes(postbox: Postbox) -> None:
    sink = mail_to(postbox, password="secret")
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    assert "secret" not in repr(sink)
    writer = sink.open(STREAM)
    assert writer.write(batch_of(4, ("tea", 9, -1), ("tea", 2, 1), ("größer", 0, 1), ("milk", 5, -1)))
    assert not writer.write(batch_of(4, ("tea", 2, 1)))
    writer.close()
    (mail,) = postbox.mails
    assert (mail["From"], mail["To"]) == ("shop@example.org", "ops@example.org")
    assert mail["Subject"] == "shop.low: 3 changes"
    assert mail["Message-ID"].endswith("@example.org>")
    assert mail["Date"]
    assert mail.get_content().splitlines() == [
        "+ product größer, left 0",
        "- product milk, left 5",
        "~ product tea, left 2 (was left 9)",
        "",
        "shop.low, batch 4, part 1 of 1",
    ]


def test_a_mail_for_each_row_with_its_columns_in_the_subject(postbox: Postbox) -> None:
    sink = mail_to(postbox, each="row", subject="{product} is low: {left}\nBcc: everyone")
    sink.open(STREAM).write(batch_of(0, ("tea", 2, 1), ("milk", 1, 1)))
    assert [mail["Subject"] for mail in postbox.mails] == [
        "milk is low: 1 Bcc: everyone",
        "tea is low: 2 Bcc: everyone",
    ]
    assert all(mail["Bcc"] is None for mail in postbox.mails)
    assert len({mail["Message-ID"] for mail in postbox.mails}) == 2


def test_a_repeated_mail_has_the_same_id(postbox: Postbox) -> None:
    for _ in range(2):
        mail_to(postbox).open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    first, second = postbox.mails
    assert first["Message-ID"] == second["Message-ID"]


def test_several_recipients(postbox: Postbox) -> None:
    sink = hw.Mail(["a@example.org", "b@example.org"], sender="shop@example.org", server=postbox.address)
    sink.open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    assert len(postbox.recipients) == 2
    postbox.replies["rcpt TO:<b@example.org>"] = "550 no such user"
    with pytest.raises(InvalidError, match=r"b@example\.org: 550 no such user"):
        sink.open(STREAM).write(batch_of(1, ("tea", 2, 1)))


@pytest.mark.parametrize(
    ("command", "answer", "kind"),
    [
        ("MAIL", "451 try later", UnavailableError),
        ("MAIL", "550 not you", InvalidError),
        ("RCPT", "450 mailbox busy", UnavailableError),
        ("RCPT", "550 no such user", InvalidError),
        ("END", "452 disk full", UnavailableError),
        ("END", "554 looks like spam", InvalidError),
        ("EHLO", "421 shutting down", UnavailableError),
    ],
)
def test_the_reply_decides_whether_to_retry(
    postbox: Postbox, command: str, answer: str, kind: type[Exception]
) -> None:
    postbox.replies[command] = answer
    if command == "EHLO":
        postbox.replies["HELO"] = answer
    with pytest.raises(kind, match=answer):
        mail_to(postbox).open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    postbox.replies.clear()
    assert mail_to(postbox).open(STREAM).write(batch_of(0, ("tea", 2, 1)))


def test_refused_mails_are_named_after_the_others_are_sent(postbox: Postbox) -> None:
    postbox.refuses = "tea"
    with pytest.raises(RefusedError, match="554 not this one") as error:
        mail_to(postbox, each="row").open(STREAM).write(
            batch_of(0, ("tea", 2, 1), ("water", 1, 1), ("milk", 1, 1))
        )
    assert error.value.rows == (0,)
    assert len(postbox.mails) == 2


def test_an_unreachable_server_is_unavailable() -> None:
    sink = hw.Mail("a@example.org", sender="b@example.org", server="127.0.0.1:1")
    with pytest.raises(UnavailableError, match="Connection refused"):
        sink.open(STREAM).write(batch_of(0, ("tea", 2, 1)))


def test_a_missing_capability_of_the_server_is_named(postbox: Postbox) -> None:
    with pytest.raises(InvalidError, match="STARTTLS"):
        mail_to(postbox, tls="starttls").open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    with pytest.raises(InvalidError, match="AUTH"):
        mail_to(postbox, user="shop", password="x").open(STREAM).write(batch_of(0, ("tea", 2, 1)))


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(InvalidError, match="expected host:port"):
        hw.Mail("a@b", sender="c@d", server="localhost")
    with pytest.raises(InvalidError, match="'plain', 'starttls' or 'tls'"):
        hw.Mail("a@b", sender="c@d", tls="yes")
    with pytest.raises(InvalidError, match="it may contain query, count"):
        hw.Mail("a@b", sender="c@d", subject="{product}").open(STREAM)
    with pytest.raises(InvalidError, match="it may contain query, count, product, left"):
        hw.Mail("a@b", sender="c@d", subject="{prodct}", each="row").open(STREAM)
