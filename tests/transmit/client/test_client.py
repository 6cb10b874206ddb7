"""The client, against an embedded broker."""

import pytest

from headwater.errors import RefusedError
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

JOBS = TopicPartition("jobs", 0)


def values(client: Client) -> list[list[bytes | None]]:
    """Return the values of the records of each batch."""
    data, _ = client.read(JOBS, 0)
    return [[record.value for record in decode_batch(data, position)] for position, _ in walk(data)]


def test_append_splits_batches_to_size_limit_of_topic(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("jobs", configs={"max.message.bytes": "200"})
        client.append(JOBS, (Record(value=b"%d" % n, timestamp_ms=1) for n in range(50)))
        found = values(client)
        assert [value for batch in found for value in batch] == [b"%d" % n for n in range(50)]
        assert len(found) > 1
        with pytest.raises(RefusedError, match=r"max\.message\.bytes is 200"):
            client.append(JOBS, [Record(value=b"x" * 200, timestamp_ms=1)])


def test_append_small_and_large_records(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("jobs")
        sizes = [600_000, 1, 600_000, 1_000_000, 2]
        client.append(JOBS, [Record(value=b"x" * size, timestamp_ms=1) for size in sizes])
        assert [[len(value or b"") for value in batch] for batch in values(client)] == [
            [600_000, 1], [600_000], [1_000_000], [2],
        ]  # fmt: skip
