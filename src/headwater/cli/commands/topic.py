"""`headwater topic`: list, create, describe, alter and delete topics; produce and consume records."""

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

app = typer.Typer(
    help="List, create, change and delete topics, produce and consume records.", no_args_is_help=True
)

PRODUCE_RECORDS = 1000
"""Lines per record batch."""


@app.command("list")
def list_topics(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List topics with their numbers of partitions and records.

    Example: headwater topic list --output json
    """
    from headwater.record import EARLIEST, LATEST, TopicPartition
    from headwater.transmit.client.client import Client

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
        created = client.create_topic(name, partitions=partitions, configs=configs)
        found = len(client.topics([name])[name].leaders)
    count = f"{found} partition{'' if found == 1 else 's'}"
    print(f"created topic {name} with {count}" if created else f"topic {name} already exists, with {count}")


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


@app.command("describe")
def describe_topic(
    name: TopicArgument,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the partitions of a topic with their offsets, and the configs that differ from the default.

    Example: headwater topic describe orders --output json
    """
    from headwater.record import EARLIEST, LATEST, TopicPartition
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.topics import topic_settings

    with Client(bootstrap_servers) as client:
        settings = topic_settings(client, name)  # raises an error if the topic does not exist
        partitions = [TopicPartition(name, n) for n in sorted(client.topics([name])[name].leaders)]
        start, end = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
    rows = [{"partition": tp.partition, "start_offset": start[tp], "end_offset": end[tp]} for tp in partitions]
    changed = {setting.name: setting.value for setting in settings if setting.source != "default"}
    if output is OutputFormat.JSON:
        print_json({"name": name, "partitions": rows, "configs": changed})
        return
    print_table(["partition", "start_offset", "end_offset"], [list(row.values()) for row in rows])
    for key, value in changed.items():
        print(f"{key} = {value}")


@app.command("configs")
def topic_configs(
    name: TopicArgument,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List every config of a topic with its value, source and meaning.

    Example: headwater topic configs orders
    """
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.topics import topic_settings

    with Client(bootstrap_servers) as client:
        settings = topic_settings(client, name)
    if output is OutputFormat.JSON:
        rows = [{"name": s.name, "value": s.value, "source": s.source, "doc": s.doc} for s in settings]
        print_json({"name": name, "configs": rows})
    else:
        print_table(
            ["name", "value", "source", "meaning"], [[s.name, s.value or "", s.source, s.doc] for s in settings]
        )


@app.command("alter")
def alter_topic(
    name: TopicArgument,
    changes: Annotated[
        list[str], typer.Argument(help="NAME=VALUE sets a config, NAME= resets it to its default.")
    ],
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Change configs of a topic, with immediate effect.

    Example: headwater topic alter orders retention.ms=86400000 cleanup.policy=
    """
    from headwater.transmit.client import topics as topic_client
    from headwater.transmit.client.client import Client

    wanted: dict[str, str | None] = {}
    for change in changes:
        key, found, value = change.partition("=")
        if not found or not key:
            raise InvalidError(f"cannot read change {change!r}: expected NAME=VALUE or NAME=")
        wanted[key] = value or None
    with Client(bootstrap_servers) as client:
        topic_client.alter_topic(client, name, wanted)
    if output is OutputFormat.JSON:
        print_json({"name": name, "configs": wanted})
    else:
        print(f"topic {name} changed: {', '.join(changes)}")


@app.command("delete")
def delete_topic(
    name: TopicArgument,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Delete a topic and its records.

    Example: headwater topic delete orders
    """
    from headwater.transmit.client import topics as topic_client
    from headwater.transmit.client.client import Client

    with Client(bootstrap_servers) as client:
        topic_client.delete_topic(client, name)
    if output is OutputFormat.JSON:
        print_json({"name": name, "deleted": True})
    else:
        print(f"topic {name} deleted")


def records_of(client: "Client", topic: str, offset: int | None) -> "Iterator[tuple[int, Record]]":
    """Yield the records of one partition after the other, up to the end offset at the time of the call."""
    from headwater.record import EARLIEST, LATEST, TopicPartition
    from headwater.transmit.records.batch import decode_batch
    from headwater.transmit.records.batch_header import walk

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
