"""The room for requests: who passes, who waits, and that memory stays bounded when the disk is slow."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from headwater.record import Record
from headwater.transmit.broker.request_memory import SMALL_BYTES, RequestMemory
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.wire.frame import LENGTH

MEBI = 1 << 20


def test_a_request_waits_until_there_is_room() -> None:
    intake, came = RequestMemory(100 * SMALL_BYTES), []
    assert intake.take(80 * SMALL_BYTES)
    assert not intake.take(30 * SMALL_BYTES)
    intake.wait(30 * SMALL_BYTES, lambda: came.append("second"))
    intake.give_back(80 * SMALL_BYTES)
    assert came == ["second"]
    assert intake.held_bytes == 30 * SMALL_BYTES


def test_small_requests_pass_a_full_house() -> None:
    intake = RequestMemory(SMALL_BYTES)
    assert intake.take(2 * SMALL_BYTES)
    assert intake.take(100)


def test_a_request_larger_than_all_room_passes_alone() -> None:
    intake = RequestMemory(SMALL_BYTES)
    assert intake.take(10 * SMALL_BYTES)
    assert not intake.take(10 * SMALL_BYTES)


def test_who_leaves_the_queue_lets_the_next_one_in() -> None:
    intake, came = RequestMemory(10 * SMALL_BYTES), []
    assert intake.take(5 * SMALL_BYTES)

    def never() -> None:
        came.append("large")

    intake.wait(8 * SMALL_BYTES, never)
    intake.wait(2 * SMALL_BYTES, lambda: came.append("fits"))
    intake.forget(never)
    assert came == ["fits"]


@given(st.lists(st.tuples(st.booleans(), st.integers(SMALL_BYTES + 1, 5 * SMALL_BYTES)), max_size=60))
def test_never_more_is_held_than_allowed_and_everybody_gets_in(steps: list[tuple[bool, int]]) -> None:
    intake, held, inside = RequestMemory(8 * SMALL_BYTES), [], []
    asked = 0

    def enter(size: int) -> Callable[[], None]:
        return lambda: (held.append(size), inside.append(size))[0]

    for is_request, size in steps:
        if is_request:
            asked += 1
            if intake.take(size):
                enter(size)()
            else:
                intake.wait(size, enter(size))
        elif held:
            intake.give_back(held.pop(0))
        assert intake.held_bytes == sum(held) <= intake.bytes_max
    while held:
        intake.give_back(held.pop(0))
    assert len(inside) == asked
    assert (intake.held_bytes, intake.waiting) == (0, 0)


SLOW_DISK = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
sync = os.fdatasync
def slow(fd):
    time.sleep(0.1)
    sync(fd)
os.fdatasync = slow
from headwater.transmit.broker.embedded import Broker
with Broker(sys.argv[1], queued_max_request_bytes=16 << 20) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def peak_bytes(process: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def flood(servers: str, frames: int, frame: bytes) -> list[int]:
    """Send without waiting for answers, as fast as the socket takes it; return the error codes."""
    host, port = servers.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        sender = threading.Thread(target=lambda: [client.sendall(frame) for _ in range(frames)])
        sender.start()
        file, codes = client.makefile("rb"), []
        for _ in range(frames):
            (size,) = LENGTH.unpack(file.read(LENGTH.size))
            answer = ProduceResponse.decode(file.read(size)[4:], version=7)
            codes.append(answer.responses[0].partition_responses[0].error_code)
        sender.join()
        file.close()
    return codes


def test_memory_stays_bounded_when_producers_are_faster_than_the_disk(tmp_path: Path) -> None:
    """16 producers with 24 MiB in flight each, 384 in all: with 16 MiB of room the broker must not hold them."""
    batch = encode_batch([Record(value=b"x" * (MEBI - 1000), timestamp_ms=1)])
    topic = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=60_000,
        topic_data=[topic(name="flood", partition_data=[topic.PartitionProduceData(index=0, records=batch)])],
    )  # fmt: skip
    request.with_header(correlation_id=1, client_id="flood")
    frame = bytes(request.encode(version=7, header=True, framed=True))
    command = [sys.executable, "-c", SLOW_DISK, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        servers = process.stdout.readline().strip()
        with Client(servers) as client:
            client.create_topic("flood", partitions=1)
        before = peak_bytes(process.pid)
        codes: list[int] = []
        floods = [
            threading.Thread(target=lambda: codes.extend(flood(servers, frames=24, frame=frame)))
            for _ in range(16)
        ]
        for each in floods:
            each.start()
        for each in floods:
            each.join()
        grown = peak_bytes(process.pid) - before
        process.communicate("")
    assert codes == [0] * 16 * 24
    assert grown < 64 * MEBI
