"""Parts that a socket does not accept at once are neither lost nor sent twice nor out of order."""

import socket
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.transmit.broker.outbox import BYTES_A_TURN, Outbox
from headwater.transmit.records.file_region import FileRegion, Part
from headwater.transmit.transport import SocketTransport, Transport


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "file"
    path.write_bytes(bytes(range(256)) * 4096)
    return path


PIECES = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.integers(1, 300_000).map(lambda size: b"x" * size),
    st.tuples(st.integers(0, 500_000), st.integers(1, 500_000)),
)


@given(st.lists(st.lists(PIECES, max_size=8), max_size=4), st.integers(20_000, 1 << 20))
def test_parts_arrive_in_order(file: Path, responses: list, read_bytes: int) -> None:
    content = file.read_bytes()
    ours, theirs = socket.socketpair()
    with ours, theirs, file.open("rb") as opened:
        theirs.setblocking(False)
        outbox = Outbox(SocketTransport(ours, "127.0.0.1"))
        expected, received = bytearray(), bytearray()
        for response in responses:
            parts: list[Part] = [
                piece if isinstance(piece, bytes) else FileRegion(opened.fileno(), *piece) for piece in response
            ]
            expected += b"".join(
                piece if isinstance(piece, bytes) else content[piece[0] : sum(piece)] for piece in response
            )
            outbox.put(parts)
            outbox.send()
        while outbox.size:
            received += theirs.recv(read_bytes)
            outbox.send()
        while len(received) < len(expected):
            received += theirs.recv(read_bytes)
        assert received == expected


class Greedy:
    """A transport that accepts everything."""

    def sendmsg(self, buffers: list, ancillary: object, flags: int) -> int:
        return sum(map(len, buffers))


def test_send_stops_after_bytes_of_one_turn() -> None:
    outbox = Outbox(cast(Transport, Greedy()))
    outbox.put([b"x" * 100_000] * 200)
    outbox.send()
    assert 20_000_000 - BYTES_A_TURN - 64 * 100_000 <= outbox.size <= 20_000_000 - BYTES_A_TURN


def test_truncated_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(b"0123456789")
    ours, theirs = socket.socketpair()
    with ours, theirs, path.open("rb+") as opened:
        outbox = Outbox(SocketTransport(ours, "127.0.0.1"))
        outbox.put([FileRegion(opened.fileno(), 0, 10)])
        opened.truncate(4)
        with pytest.raises(OSError, match="was truncated"):
            outbox.send()
