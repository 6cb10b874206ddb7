"""Mail, through a small but real SMTP server."""

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
    """Takes mail as RFC 5321 says; `answers` has what it says instead of yes to a command.

    A mail with the word that it `refuses` is not taken.
    """

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[str] = []
        self.answers: dict[str, str] = {}
        self.refuses: str | None = None
        postbox = self

        class Handler(socketserver.StreamRequestHandler):
            def say(self, line: str) -> None:
                self.wfile.write(line.encode() + b"\r\n")

            def handle(self) -> None:
                self.say("220 postbox")
                while line := self.rfile.readline().decode().strip():
                    command = line.split()[0].upper()
                    answer = postbox.answers.get(command) or postbox.answers.get(line)
                    if answer:
                        self.say(answer)
                    elif command == "RCPT":
                        postbox.recipients.append(line)
                        self.say("250 ok")
                    elif command == "DATA":
                        self.say("354 go on")
                        self.take()
                    elif command == "QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 ok")

            def take(self) -> None:
                lines = []
                while (line := self.rfile.readline()) != b".\r\n":
                    lines.append(line.removeprefix(b"."))
                answer = postbox.answers.get("END", "250 taken")
                if postbox.refuses is not None and any(postbox.refuses.encode() in line for line in lines):
                    answer = "554 not this one"
                if answer.startswith("250"):
                    mail: Any = message_from_bytes(b"".join(lines), policy=policy.default)
                    postbox.mails.append(mail)
                self.say(answer)

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


def test_a_mail_for_each_row_named_by_it(postbox: Postbox) -> None:
    sink = mail_to(postbox, each="row", subject="{product} is low: {left}\nBcc: everybody")
    sink.open(STREAM).write(batch_of(0, ("tea", 2, 1), ("milk", 1, 1)))
    assert [mail["Subject"] for mail in postbox.mails] == [
        "milk is low: 1 Bcc: everybody",
        "tea is low: 2 Bcc: everybody",
    ]
    assert all(mail["Bcc"] is None for mail in postbox.mails)
    assert len({mail["Message-ID"] for mail in postbox.mails}) == 2


def test_a_mail_sent_again_has_the_same_id(postbox: Postbox) -> None:
    for _ in range(2):
        mail_to(postbox).open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    first, second = postbox.mails
    assert first["Message-ID"] == second["Message-ID"]


def test_several_recipients(postbox: Postbox) -> None:
    sink = hw.Mail(["a@example.org", "b@example.org"], sender="shop@example.org", server=postbox.address)
    sink.open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    assert len(postbox.recipients) == 2
    postbox.answers["rcpt TO:<b@example.org>"] = "550 no such user"
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
def test_what_the_server_says_decides(postbox: Postbox, command: str, answer: str, kind: type[Exception]) -> None:
    postbox.answers[command] = answer
    if command == "EHLO":
        postbox.answers["HELO"] = answer
    with pytest.raises(kind, match=answer):
        mail_to(postbox).open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    postbox.answers.clear()
    assert mail_to(postbox).open(STREAM).write(batch_of(0, ("tea", 2, 1)))


def test_mails_that_are_refused_are_named_when_the_others_are_sent(postbox: Postbox) -> None:
    postbox.refuses = "tea"
    with pytest.raises(RefusedError, match="554 not this one") as error:
        mail_to(postbox, each="row").open(STREAM).write(
            batch_of(0, ("tea", 2, 1), ("water", 1, 1), ("milk", 1, 1))
        )
    assert error.value.rows == (0,)
    assert len(postbox.mails) == 2


def test_a_server_that_is_away_is_waited_for() -> None:
    sink = hw.Mail("a@example.org", sender="b@example.org", server="127.0.0.1:1")
    with pytest.raises(UnavailableError, match="Connection refused"):
        sink.open(STREAM).write(batch_of(0, ("tea", 2, 1)))


def test_a_server_without_what_is_asked_for_is_named(postbox: Postbox) -> None:
    with pytest.raises(InvalidError, match="STARTTLS"):
        mail_to(postbox, tls="starttls").open(STREAM).write(batch_of(0, ("tea", 2, 1)))
    with pytest.raises(InvalidError, match="AUTH"):
        mail_to(postbox, user="shop", password="x").open(STREAM).write(batch_of(0, ("tea", 2, 1)))


def test_settings_that_make_no_sense_are_named() -> None:
    with pytest.raises(InvalidError, match="expected host:port"):
        hw.Mail("a@b", sender="c@d", server="localhost")
    with pytest.raises(InvalidError, match="'plain', 'starttls' or 'tls'"):
        hw.Mail("a@b", sender="c@d", tls="yes")
    with pytest.raises(InvalidError, match="it may contain query, count"):
        hw.Mail("a@b", sender="c@d", subject="{product}").open(STREAM)
    with pytest.raises(InvalidError, match="it may contain query, count, product, left"):
        hw.Mail("a@b", sender="c@d", subject="{prodct}", each="row").open(STREAM)
