"""Reading the log into Arrow columns: Headwater's client compared with confluent-kafka's consume(), in turns.

./dev bench read [RECORDS]

Both read the same records from the same broker.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import confluent_kafka
import pyarrow as pa

from headwater.record import TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.to_arrow import to_arrow

ROUNDS = 3
SIZES = (100, 1000)


def ours(servers: str, topic: str, records: int) -> int:
    """Read as a task of the Spark source does."""
    partition = TopicPartition(topic, 0)
    rows = at = 0
    with Client(servers) as client:
        while at < records:
            data, next_offset = client.read(partition, at)
            rows += to_arrow(data, partition, at, records).num_rows
            at = next_offset
    return rows


def theirs(servers: str, topic: str, records: int) -> int:
    """Build the same columns as fast as librdkafka allows from Python."""
    settings = {"bootstrap.servers": servers, "group.id": "bench", "fetch.wait.max.ms": 10}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    rows = 0
    while rows < records:
        messages = consumer.consume(10_000, 1.0)
        batch = pa.table(
            {
                "key": pa.array([m.key() for m in messages], pa.binary()),
                "value": pa.array([m.value() for m in messages], pa.binary()),
                "offset": pa.array([m.offset() for m in messages], pa.int64()),
                "timestamp": pa.array([m.timestamp()[1] for m in messages], pa.int64()),
            }
        )
        rows += batch.num_rows
    consumer.close()
    return rows


def rate(read: Callable[[str, str, int], int], servers: str, topic: str, records: int) -> float:
    began = time.perf_counter()
    assert read(servers, topic, records) == records
    return records / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench read", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", nargs="?", type=int, default=500_000, help="of 100 B (default: 500000)")
    records = parser.parse_args().records
    with Broker(durability="never") as broker:
        servers = broker.bootstrap_servers
        for size in SIZES:
            topic, count = f"bench-{size}", records * 100 // size
            fill(servers, topic, count, size)
            sides = (ours, theirs)
            measured = [[rate(side, servers, topic, count) for side in sides] for _ in range(ROUNDS)]
            us, them = (median(some) for some in zip(*measured, strict=True))
            rates = f"Headwater {us:>9,.0f} rows/s, librdkafka {them:>9,.0f} rows/s"
            print(f"{size:>5} B: {rates}, {us / them:.2f}x librdkafka")


def fill(servers: str, topic: str, records: int, size: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "queue.buffering.max.messages": 10_000_000, "linger.ms": 20}
    )
    value = b"x" * size
    for number in range(records):
        producer.produce(topic, key=str(number).encode(), value=value)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    main()
