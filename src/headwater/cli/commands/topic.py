"""`headwater topic list|create|produce|consume`: topics and their records."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import BootstrapOption, TopicArgument
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.errors import InvalidError

if TYPE_CHECKING:
    from headwater.record import Record
    from headwater.transmit.client.client import Client

app = typer.Typer(help="List and create topics, produce and consume records.", no_args_is_help=True)

PRODUCE_RECORDS = 1000
"""Lines per record batch."""


@app.command("list")
def list_topics(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List topics with their numbers of partitions and records.

    Example: headwater topic list --output json
    """
    from headwater.record import TopicPartition
    from headwater.transmit.client.client import EARLIEST, LATEST, Client

    with Client(bootstrap_servers) as client:
        found = client.topics()
        partitions = [TopicPartition(name, n) for name, info in found.items() for n in info.leaders]
        start, end = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
    topics = [
        {
            "name": name,
            "partitions": len(info.leaders),
            "records": sum(end[tp] - start[tp] for tp in partitions if tp.topic == name),
        }
        for name, info in sorted(found.items())
    ]
    if output is OutputFormat.JSON:
        print_json({"topics": topics})
    else:
        print_table(["name", "partitions", "records"], [list(topic.values()) for topic in topics])


@app.command("create")
def create_topic(
    name: TopicArgument,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", help="A config as NAME=VALUE; may be repeated.")
    ] = None,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
) -> None:
    """Create a topic.

    Example: headwater topic create orders --partitions 3 --config retention.ms=86400000
    """
    from headwater.transmit.client.client import Client

    configs = dict(_name_and_value(text) for text in config or [])
    with Client(bootstrap_servers) as client:
        client.create_topic(name, partitions=partitions, configs=configs)
    print(f"topic {name} exists ({partitions} partitions requested)")


@app.command("produce")
def produce_records(
    name: TopicArgument,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Separator between key and value in a line.")
    ] = None,
    partition: Annotated[int, typer.Option(min=0, help="Partition to append to.")] = 0,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
) -> None:
    """Append each line of standard input as a record.

    Example: echo '{"product": "tea"}' | headwater topic produce orders
    """
    from headwater.clock import SystemClock
    from headwater.record import Record, TopicPartition
    from headwater.transmit.client.client import Client

    clock = SystemClock()
    lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    count = 0
    with Client(bootstrap_servers) as client:
        client.topics([name], auto_create=True)
        while some := list(islice(lines, PRODUCE_RECORDS)):
            pairs = [_key_and_value(line, key_separator) for line in some]
            records = [Record(key=key, value=value, timestamp_ms=clock.now_ms()) for key, value in pairs]
            client.append(TopicPartition(name, partition), records)
            count += len(records)
    print(f"appended {count} record{'' if count == 1 else 's'} to {name}-{partition}", file=sys.stderr)


@app.command("consume")
def consume_records(
    name: TopicArgument,
    offset: Annotated[
        int | None, typer.Option(help="First offset in each partition; defaults to the oldest record.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of records.")] = None,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
) -> None:
    """Print the records of a topic as JSON, one per line, up to its current end.

    Example: headwater topic consume orders.deadletter --limit 10
    """
    from headwater.transmit.client.client import Client

    with Client(bootstrap_servers) as client:
        for partition, record in islice(records_of(client, name, offset), limit):
            print(json.dumps(_as_json(name, partition, record), ensure_ascii=False))


def records_of(client: "Client", topic: str, offset: int | None) -> "Iterator[tuple[int, Record]]":
    """Yield the records of one partition after the other, up to the end offset at the time of the call."""
    from headwater.record import TopicPartition
    from headwater.transmit.client.client import EARLIEST, LATEST
    from headwater.transmit.records.batch import decode_batch, walk

    info = client.topics([topic]).get(topic)
    if info is None:
        raise InvalidError(f"cannot consume topic {topic!r}: it does not exist", hint="headwater topic list")
    partitions = [TopicPartition(topic, number) for number in sorted(info.leaders)]
    oldest, latest = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
    for partition in partitions:
        at = first = oldest[partition] if offset is None else max(offset, oldest[partition])
        while at < latest[partition]:
            data, at = client.read(partition, at)
            for start, header in walk(data):
                if not header.is_control:
                    found = (record for record in decode_batch(data, start) if record.offset >= first)
                    yield from ((partition.partition, record) for record in found)


def _name_and_value(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise InvalidError(f"cannot read --config {text!r}: expected NAME=VALUE")
    return name, value


def _key_and_value(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    return (key, value) if found else (None, line)


def _as_json(topic: str, partition: int, record: "Record") -> dict[str, Any]:
    """Return a record with the fields of kcat's JSON envelope; invalid UTF-8 becomes replacement characters."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "ts": record.timestamp_ms,
        "headers": {name: _text(value) for name, value in record.headers},
        "key": _text(record.key),
        "payload": _text(record.value),
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
