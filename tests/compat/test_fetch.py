"""The size of a fetch response: at most what the client requests, but always a whole batch."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.transmit.broker.embedded import Broker

PARTITIONS, RECORDS, RECORD_BYTES = 4, 8, 200_000
WAIT_S = 30.0


@pytest.mark.compat("answers within fetch.max.bytes", client="confluent-kafka")
@pytest.mark.parametrize("max_bytes", [500_000, 50_000], ids=["two batches", "less than one batch"])
def test_a_response_is_no_larger_than_the_client_allows(broker: Broker, max_bytes: int) -> None:
    """On a larger response librdkafka closes the connection, then sends the same request again, forever."""
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result(WAIT_S)
    producer = Producer({**servers, "batch.num.messages": 1})
    for n in range(RECORDS):
        producer.produce("orders", b"x" * RECORD_BYTES, partition=n % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer(
        {
            **servers, "group.id": "readers", "auto.offset.reset": "earliest", "fetch.max.bytes": max_bytes,
            "max.partition.fetch.bytes": 20_000_000, "message.max.bytes": min(max_bytes, RECORD_BYTES),
            "receive.message.max.bytes": max(max_bytes, RECORD_BYTES) + 1000,
        }
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition("orders", n, 0) for n in range(PARTITIONS)])
        found = [message for _ in range(RECORDS) if (message := consumer.poll(WAIT_S)) is not None]
        assert [message.error() for message in found] == [None] * RECORDS
    finally:
        consumer.close()
