"""The limit on the memory of requests, also when the disk is slow."""

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


def test_request_waits_until_memory_is_released() -> None:
    memory, granted = RequestMemory(100 * SMALL_BYTES), []
    assert memory.acquire(80 * SMALL_BYTES)
    assert not memory.acquire(30 * SMALL_BYTES)
    memory.wait(30 * SMALL_BYTES, lambda: granted.append("second"))
    memory.release(80 * SMALL_BYTES)
    assert granted == ["second"]
    assert memory.held_bytes == 30 * SMALL_BYTES


def test_small_requests_ignore_limit() -> None:
    memory = RequestMemory(SMALL_BYTES)
    assert memory.acquire(2 * SMALL_BYTES)
    assert memory.acquire(100)


def test_request_larger_than_limit_is_granted_alone() -> None:
    memory = RequestMemory(SMALL_BYTES)
    assert memory.acquire(10 * SMALL_BYTES)
    assert not memory.acquire(10 * SMALL_BYTES)


def test_cancelled_request_lets_next_one_in() -> None:
    memory, granted = RequestMemory(10 * SMALL_BYTES), []
    assert memory.acquire(5 * SMALL_BYTES)

    def never() -> None:
        granted.append("large")

    memory.wait(8 * SMALL_BYTES, never)
    memory.wait(2 * SMALL_BYTES, lambda: granted.append("fits"))
    memory.cancel(never)
    assert granted == ["fits"]


@given(st.lists(st.tuples(st.booleans(), st.integers(SMALL_BYTES + 1, 5 * SMALL_BYTES)), max_size=60))
def test_limit_is_kept_and_every_request_is_granted(steps: list[tuple[bool, int]]) -> None:
    memory, held, granted = RequestMemory(8 * SMALL_BYTES), [], []
    requests = 0

    def grant(size: int) -> Callable[[], None]:
        return lambda: (held.append(size), granted.append(size))[0]

    for is_request, size in steps:
        if is_request:
            requests += 1
            if memory.acquire(size):
                grant(size)()
            else:
                memory.wait(size, grant(size))
        elif held:
            memory.release(held.pop(0))
        assert memory.held_bytes == sum(held) <= memory.bytes_max
    while held:
        memory.release(held.pop(0))
    assert len(granted) == requests
    assert (memory.held_bytes, memory.waiting) == (0, 0)


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
    """Send requests as fast as the socket accepts them, without waiting for responses; return the error codes."""
    host, port = servers.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        sender = threading.Thread(target=lambda: [client.sendall(frame) for _ in range(frames)])
        sender.start()
        file, codes = client.makefile("rb"), []
        for _ in range(frames):
            (size,) = LENGTH.unpack(file.read(LENGTH.size))
            response = ProduceResponse.decode(file.read(size)[4:], version=7)
            codes.append(response.responses[0].partition_responses[0].error_code)
        sender.join()
        file.close()
    return codes


def test_memory_is_bounded_when_producers_are_faster_than_disk(tmp_path: Path) -> None:
    """16 producers have 24 MiB in flight each, 384 MiB in all; the broker may hold 16 MiB of them."""
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
