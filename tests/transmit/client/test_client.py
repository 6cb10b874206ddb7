"""Our own client, against our own broker."""

import pytest

from headwater.errors import RefusedError
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch, walk

JOBS = TopicPartition("jobs", 0)


def values(client: Client) -> list[list[bytes | None]]:
    """Of each batch."""
    data, _ = client.read(JOBS, 0)
    return [[record.value for record in decode_batch(data, place)] for place, _ in walk(data)]


def test_records_are_appended_in_batches_as_small_as_the_topic_wants_them(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("jobs", configs={"max.message.bytes": "200"})
        client.append(JOBS, (Record(value=b"%d" % n, timestamp_ms=1) for n in range(50)))
        found = values(client)
        assert [value for batch in found for value in batch] == [b"%d" % n for n in range(50)]
        assert len(found) > 1
        with pytest.raises(RefusedError, match=r"max\.message\.bytes is 200"):
            client.append(JOBS, [Record(value=b"x" * 200, timestamp_ms=1)])


def test_a_large_record_does_not_keep_small_ones_from_the_log(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("jobs")
        sizes = [600_000, 1, 600_000, 1_000_000, 2]
        client.append(JOBS, [Record(value=b"x" * size, timestamp_ms=1) for size in sizes])
        assert [[len(value or b"") for value in batch] for batch in values(client)] == [
            [600_000, 1], [600_000], [1_000_000], [2],
        ]  # fmt: skip
