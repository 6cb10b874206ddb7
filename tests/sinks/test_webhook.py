"""The webhook sink, with a real HTTP server and prepared responses."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.errors import InvalidError, RefusedError, UnavailableError
from headwater.sink import REFUSALS_MAX, Batch, Guarantee, Stream
from headwater.testing.process_kill import kill_while_writing

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
STREAM = Stream(query="shop.alerts", schema=SCHEMA, key=("k",), changes=True)


def batch_of(number: int, *changes: tuple[str, int, int]) -> Batch:
    rows = pa.table({"k": [k for k, _, _ in changes], "v": [v for _, v, _ in changes]}, schema=SCHEMA)
    return Batch(run="r", number=number, rows=rows, signs=pa.array([s for _, _, s in changes], pa.int8()))


def deliver(sink: hw.Webhook, batch: Batch) -> bool:
    with closing(sink.open(STREAM)) as writer:
        return writer.write(batch)


class Receiver:
    """Records the requests; sends the prepared responses in turn, then 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.responses: list[tuple[int, dict[str, str], str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.requests.append((self.path, dict(self.headers), body))
                status, headers, text = receiver.responses.pop(0) if receiver.responses else (200, {}, "")
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?to=ops"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def deduplicated(self) -> list[Any]:
        """Return the bodies as a receiver that deduplicates by key sees them."""
        return list({headers["Idempotency-Key"]: body for _, headers, body in self.requests}.values())

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.stop()


def test_a_batch_is_a_request_with_its_changes(receiver: Receiver) -> None:
    sink = hw.Webhook(receiver.url, headers={"Authorization": "Bearer secret"})
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    assert "secret" not in repr(sink)
    writer = sink.open(STREAM)
    assert writer.write(batch_of(0, ("tea", 1, 1)))
    assert not writer.write(batch_of(0, ("tea", 1, 1)))
    assert writer.write(batch_of(1, ("tea", 1, -1), ("tea", 2, 1), ("milk", 3, 1)))
    writer.close()
    (path, headers, first), (_, _, second) = receiver.requests
    assert path == "/hook?to=ops"
    assert (headers["Authorization"], headers["Content-Type"]) == ("Bearer secret", "application/json")
    assert headers["Idempotency-Key"] == first["id"] != second["id"]
    assert (first["query"], first["batch"]) == ("shop.alerts", 0)
    assert first["changes"] == [{"op": "c", "before": None, "after": {"k": "tea", "v": 1}}]
    assert second["changes"] == [
        {"op": "c", "before": None, "after": {"k": "milk", "v": 3}},
        {"op": "u", "before": {"k": "tea", "v": 1}, "after": {"k": "tea", "v": 2}},
    ]


def test_a_request_for_each_row(receiver: Receiver) -> None:
    deliver(hw.Webhook(receiver.url, each="row"), batch_of(0, ("b", 1, 1), ("a", 2, 1)))
    assert [body["changes"][0]["after"]["k"] for _, _, body in receiver.requests] == ["a", "b"]
    assert len({headers["Idempotency-Key"] for _, headers, _ in receiver.requests}) == 2


def test_a_repeated_request_has_the_same_key(receiver: Receiver) -> None:
    for rows in ([("a", 1, 1), ("b", 2, 1)], [("b", 2, 1), ("a", 1, 1)]):  # in another order, as after a crash
        deliver(hw.Webhook(receiver.url), batch_of(7, *rows))
    assert len(receiver.requests) == 2
    assert receiver.requests[0][2] == receiver.requests[1][2]
    assert len(receiver.deduplicated()) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_failing_receiver_is_unavailable(receiver: Receiver, status: int) -> None:
    receiver.responses = [(status, {}, "try again later")]
    with closing(hw.Webhook(receiver.url).open(STREAM)) as writer:
        with pytest.raises(UnavailableError, match=f"the response is {status} try again later"):
            writer.write(batch_of(0, ("a", 1, 1)))
        assert writer.write(batch_of(0, ("a", 1, 1)))
    assert len(receiver.deduplicated()) == 1


@pytest.mark.parametrize("after", ["0", formatdate(0, usegmt=True)])
def test_retry_after_is_respected(receiver: Receiver, after: str) -> None:
    receiver.responses = [(429, {"Retry-After": after}, "too many"), (503, {"Retry-After": after}, "")]
    assert deliver(hw.Webhook(receiver.url), batch_of(0, ("a", 1, 1)))
    assert len(receiver.requests) == 3
    assert len(receiver.deduplicated()) == 1


@pytest.mark.parametrize("after", ["3600", "not a date"])
def test_a_long_retry_after_ends_the_attempt(receiver: Receiver, after: str) -> None:
    receiver.responses = [(429, {"Retry-After": after}, "too many")]
    with pytest.raises(UnavailableError, match="429 too many"):
        deliver(hw.Webhook(receiver.url), batch_of(0, ("a", 1, 1)))


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_refusal_quotes_the_response(receiver: Receiver, status: int) -> None:
    receiver.responses = [(status, {}, "v must be positive")]
    with pytest.raises(
        InvalidError, match=f"batch 0 of 'shop.alerts' .* the response is {status} v must be positive"
    ):
        deliver(hw.Webhook(receiver.url), batch_of(0, ("a", -1, 1)))


def test_refused_rows_are_named_after_the_others_are_sent(receiver: Receiver) -> None:
    sink = hw.Webhook(receiver.url, each="row")
    refused = (422, {}, "no such product")
    receiver.responses = [(200, {}, ""), refused, (200, {}, ""), refused]
    rows = [("d", 4, 1), ("b", 2, 1), ("c", 3, 1), ("a", 1, 1), ("e", 5, 1)]
    with pytest.raises(RefusedError, match="the response is 422 no such product") as error:
        deliver(sink, batch_of(0, *rows))
    assert error.value.rows == (1, 0)
    sent = {body["changes"][0]["after"]["k"]: headers["Idempotency-Key"] for _, headers, body in receiver.requests}
    # When the batch is repeated without these rows, the others keep their keys.
    deliver(sink, batch_of(0, *rows[2:]))
    for _, headers, body in receiver.requests[5:]:
        assert headers["Idempotency-Key"] == sent[body["changes"][0]["after"]["k"]]
    assert len(receiver.requests) == 8


def test_a_receiver_that_refuses_everything_gets_no_more_requests(receiver: Receiver) -> None:
    receiver.responses = [(400, {}, "")] * 500
    with pytest.raises(RefusedError) as error:
        deliver(hw.Webhook(receiver.url, each="row"), batch_of(0, *((f"{n}", n, 1) for n in range(300))))
    assert len(error.value.rows) == len(receiver.requests) == REFUSALS_MAX + 1


def test_a_refusal_of_several_rows_names_none(receiver: Receiver) -> None:
    receiver.responses = [(422, {}, "")]
    with pytest.raises(InvalidError) as error:
        deliver(hw.Webhook(receiver.url), batch_of(0, ("a", 1, 1), ("b", 2, 1)))
    assert not isinstance(error.value, RefusedError)
    assert "each='row'" in (error.value.hint or "")


def test_a_redirect_is_an_error_with_its_location(receiver: Receiver) -> None:
    receiver.responses = [(301, {"Location": "http://elsewhere/"}, "")]
    with pytest.raises(InvalidError, match=r"301 \(moved to http://elsewhere/\)"):
        deliver(hw.Webhook(receiver.url), batch_of(0, ("a", 1, 1)))


def test_an_unreachable_receiver_is_unavailable(receiver: Receiver) -> None:
    receiver.stop()
    with pytest.raises(UnavailableError, match="Connection refused"):
        deliver(hw.Webhook(receiver.url), batch_of(1, ("a", 1, 1)))


def test_every_row_arrives_although_the_sender_is_killed(receiver: Receiver) -> None:
    sink = hw.Webhook(receiver.url, each="row")
    for number in range(3):
        batch = batch_of(number, *((f"{number}-{n}", n, 1) for n in range(20)))
        kill_while_writing(sink, STREAM, batch, after_s=0.005 * number)
        deliver(sink, batch)
    found = [body["changes"][0]["after"]["k"] for body in receiver.deduplicated()]
    assert sorted(found) == sorted(f"{number}-{n}" for number in range(3) for n in range(20))


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "http://"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidError, match="expected http://"):
        hw.Webhook(url)
