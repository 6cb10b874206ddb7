"""Access to the log for these examples: append a record, optionally under a condition, and read a whole topic."""

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CONDITIONAL = {"headwater.conditional.append": "true"}


class NotTheFirst(Exception):
    """Another process has appended a record with this key in the meantime."""


def create(servers: str, topic: str, config: dict[str, str] | None = None) -> None:
    """Create a topic with one partition, unless it exists."""
    admin = AdminClient({"bootstrap.servers": servers})
    try:
        admin.create_topics([NewTopic(topic, 1, config=config or {})])[topic].result(timeout=20)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def append(servers: str, topic: str, key: str, value: str, *, after: int | None = None) -> int:
    """Append a record, wait until it is acknowledged, and return its offset.

    With `after`, append only if the last record of the key has that offset (-1: there is none); raise NotTheFirst
    otherwise.
    """
    outcome = []
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    headers = {} if after is None else {"headwater.expected.version": str(after)}
    producer.produce(topic, value, key, headers=headers, on_delivery=lambda e, m: outcome.append((e, m)))
    producer.flush(20)
    if not outcome:
        raise TimeoutError(f"the log at {servers} does not answer")
    ((error, message),) = outcome
    if error is not None and error.code() == KafkaError.OPERATION_NOT_ATTEMPTED:
        raise NotTheFirst(key)
    if error is not None:
        raise KafkaException(error)
    return message.offset()


def read(servers: str, topic: str) -> list[tuple[int, str, str]]:
    """Return offset, key and value of every record in the topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = []
        while end and (not records or records[-1][0] < end - 1):
            message = consumer.poll(20)
            if message is None or message.error():
                raise TimeoutError(f"the log at {servers} does not answer")
            records.append((message.offset(), message.key().decode(), message.value().decode()))
        return records
    finally:
        consumer.close()
