"""The log, as these examples use it: append a record, under a condition if there is one, and read all there is."""

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CONDITIONAL = {"headwater.conditional.append": "true"}


class NotTheFirst(Exception):
    """Somebody else has appended to this key since we looked."""


def create(servers: str, topic: str, config: dict[str, str] | None = None) -> None:
    """Make a topic of one partition; one that is there already is fine."""
    admin = AdminClient({"bootstrap.servers": servers})
    try:
        admin.create_topics([NewTopic(topic, 1, config=config or {})])[topic].result(timeout=20)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def append(servers: str, topic: str, key: str, value: str, *, after: int | None = None) -> int:
    """Append a record and return its offset, when it is safe.

    With `after`, only if the last record of the key is at that offset (-1: there is none); else NotTheFirst.
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
    """Offset, key and value of every record that is in the topic now."""
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
