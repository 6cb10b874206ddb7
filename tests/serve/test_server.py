"""The HTTP server: its address, and its shutdown."""

import http.client
import socket
import time
from urllib.parse import urlsplit

import pytest

from headwater.errors import ConflictError, InvalidError
from headwater.serve.api.app import create_app
from headwater.serve.live import subscriptions
from headwater.serve.server import HttpServer


def test_port_in_use_is_reported_at_once(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConflictError) as caught, HttpServer(create_app(shop.sources), "127.0.0.1", port):
            pass
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: the address is in use"
    assert "--http" in (caught.value.hint or "")


def test_address_of_another_machine_is_refused(shop):
    with pytest.raises(InvalidError, match=r"cannot listen on 192\.0\.2\.1:8080: "):
        HttpServer(create_app(shop.sources), "192.0.2.1", 8080).__enter__()


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")]
)
def test_url_reaches_the_server(shop, caller, host, shown):
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with HttpServer(create_app(shop.sources), host, 0) as server:
        assert server.url.startswith(f"http://{shown}:")
        caller.url = server.url
        assert caller.get("/api/v1/views")[0] == 200


def test_stops_within_a_second_with_open_streams(shop, capfd):
    with HttpServer(create_app(shop.sources), "127.0.0.1", 0) as server:
        address = urlsplit(server.url)
        paths = ["/api/v1/views/revenue/subscribe", "/api/v1/status/stream"]
        connections = [http.client.HTTPConnection(address.hostname or "", address.port, timeout=10) for _ in paths]
        responses = []
        for connection, path in zip(connections, paths, strict=True):
            connection.request("GET", path)
            responses.append(connection.getresponse())
        before = time.monotonic()
    took_s = time.monotonic() - before
    for response in responses:
        response.read()  # a stream that is cut off would raise IncompleteRead
    for connection in connections:
        connection.close()
    assert took_s < 1.0
    assert capfd.readouterr() == ("", "")


def test_stops_with_a_client_that_does_not_read(shop, capfd):
    shop.sell(*(("tea" * 1000 + str(n), 0, 1.0) for n in range(5000)))  # far more than the socket buffers hold
    with HttpServer(create_app(shop.sources), "127.0.0.1", 0) as server:
        address = urlsplit(server.url)
        listener = socket.create_connection((address.hostname or "", address.port or 0))
        listener.sendall(b"GET /api/v1/views/revenue/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(1.0)  # until the socket buffers are full
        before = time.monotonic()
    took_s = time.monotonic() - before
    listener.close()
    assert took_s < 3.0
    assert capfd.readouterr() == ("", "")


def test_disconnected_subscriber_costs_no_more_reads(caller, monkeypatch):
    reads: list[str] = []
    next_events = subscriptions.next_events

    def counted(store, view, standing):
        reads.append(view)
        return next_events(store, view, standing)

    monkeypatch.setattr(subscriptions, "next_events", counted)
    connection = caller.connect()
    connection.request("GET", "/api/v1/views/revenue/subscribe")
    response = connection.getresponse()
    time.sleep(6 * subscriptions.POLL_S)
    response.close()
    connection.close()
    time.sleep(4 * subscriptions.POLL_S)
    reads_then = len(reads)
    time.sleep(6 * subscriptions.POLL_S)
    assert len(reads) == reads_then > 1


def test_port_is_free_after_the_server_has_stopped(shop):
    with HttpServer(create_app(shop.sources), "127.0.0.1", 0) as first:
        port = urlsplit(first.url).port or 0
    with HttpServer(create_app(shop.sources), "127.0.0.1", port) as second:
        assert second.url == first.url


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
