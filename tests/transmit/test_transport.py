"""The broker and the client work over a transport that is not a socket, as an encrypted one will be."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headwater.record import Record, TopicPartition
from headwater.transmit.broker import server
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.reading import read_records
from headwater.transmit.records.file_region import FileRegion
from headwater.transmit.transport import Address, Buffer, SocketTransport

ORDERS = TopicPartition("orders", 0)
MESSAGE_BYTES = 16 << 10
_XOR = bytes(byte ^ 0x5A for byte in range(256))


class ScramblingTransport(SocketTransport):
    """Scrambles every byte. Like TLS, it buffers received data itself, and cannot send from files."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        super().__init__(connected, peer)
        self._received = b""
        self._callback: Callable[[], None] | None = None
        self.recv_into = self._recv_into
        self.sendmsg = self._sendmsg

    def _recv_into(self, buffer: memoryview) -> int:
        if not self._received:
            self._received = self._socket.recv(MESSAGE_BYTES).translate(_XOR)
        taken = self._received[: len(buffer)]
        buffer[: len(taken)] = taken
        self._received = self._received[len(taken) :]
        self._call_again()
        return len(taken)

    def _sendmsg(self, buffers: Sequence[Buffer], ancillary: tuple[()], flags: int) -> int:
        return self._socket.send(b"".join(buffers)[:MESSAGE_BYTES].translate(_XOR))

    def send_region(self, region: FileRegion, sent: int, count: int) -> int:
        return self._sendmsg([region.read()[sent : sent + count]], (), 0)

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        super().on_readable(callback)
        self._callback = callback
        self._call_again()

    def _call_again(self) -> None:
        """Call back for the buffered data, which the event loop does not see."""
        if self._received and self._callback is not None:
            asyncio.get_running_loop().call_soon(self._call_back)

    def _call_back(self) -> None:
        if self._received and self._callback is not None:
            self._callback()


class ScramblingClientTransport:
    def __init__(self, address: Address, timeout_s: float) -> None:
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self.close = self._socket.close
        self.fileno = self._socket.fileno

    def recv_into(self, buffer: memoryview) -> int:
        data = self._socket.recv(len(buffer)).translate(_XOR)
        buffer[: len(data)] = data
        return len(data)

    def sendall(self, data: bytes) -> None:
        self._socket.sendall(bytes(data).translate(_XOR))


def test_records_over_scrambling_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SocketTransport", ScramblingTransport)
    values = [bytes([n]) * size for n, size in enumerate((1, 100, 70_000, 500_000, 1, 900_000, 3))]
    with (
        Broker(tmp_path) as broker,
        Client(broker.bootstrap_servers, connect=ScramblingClientTransport) as client,
    ):
        client.create_topic("orders")
        client.append(ORDERS, [Record(value=value, timestamp_ms=1) for value in values])
        assert [record.value for record in read_records(client, ORDERS)] == values
