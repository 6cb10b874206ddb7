"""`headwater queue`: share groups, what waits in them, and their dead letters."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.group import ExecuteOption, GroupArgument
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.cli.topic import BootstrapOption

if TYPE_CHECKING:
    from headwater.record import Record, TopicPartition
    from headwater.transmit.client import Client

app = typer.Typer(help="List queues (share groups), redrive their dead letters, purge them.", no_args_is_help=True)

REDRIVE_SUFFIX = ".redrive"
"""The group under whose name it is kept how far dead letters have been redriven."""


@app.command("list")
def list_queues(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List share groups: members, records that wait, dead letters that were not redriven.

    Example: headwater queue list --output json
    """
    from headwater.transmit import group_client
    from headwater.transmit.client import Client

    queues: list[dict[str, Any]] = []
    with Client(bootstrap_servers) as client:
        for info in group_client.list_groups(client):
            if info.kind == group_client.SHARE:
                starts = group_client.share_starts(client, info.id)
                queues.append(
                    {
                        "queue": info.id,
                        "state": info.state,
                        "members": len(group_client.members(client, info)),
                        "topics": sorted({tp.topic for tp in starts}),
                        "waiting_records": sum(max(start.lag_records, 0) for start in starts.values()),
                        "dead_letters": len(_letters(client, info.id)[0]),
                    }
                )
    if output is OutputFormat.JSON:
        print_json({"queues": queues})
    else:
        columns = ["queue", "state", "members", "topics", "waiting_records", "dead_letters"]
        print_table(
            columns, [[*list(q.values())[:3], ", ".join(q["topics"]), *list(q.values())[4:]] for q in queues]
        )


@app.command("show")
def show_queue(
    name: GroupArgument,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show where a share group stands in each partition, its settings and its dead letters.

    Example: headwater queue show workers
    """
    from headwater.transmit import group_client
    from headwater.transmit.client import LATEST, Client

    with Client(bootstrap_servers) as client:
        info = _find(client, name)
        starts = group_client.share_starts(client, name)
        ends = client.offsets(starts, LATEST)
        those = group_client.members(client, info)
        configs = group_client.group_configs(client, name)
        letters, _ = _letters(client, name)
    columns = ["topic", "partition", "start", "end", "waiting_records"]
    rows = [[*tp, start.start, ends[tp], start.lag_records] for tp, start in sorted(starts.items())]
    dead = [
        {
            "topic": origin.partition.topic,
            "partition": origin.partition.partition,
            "offset": origin.offset,
            "deliveries": origin.delivery_count,
            "reason": origin.message,
        }
        for _, _, origin in letters
    ]
    if output is OutputFormat.JSON:
        print_json(
            {
                "queue": name, "state": info.state, "configs": configs, "dead_letters": dead,
                "partitions": [dict(zip(columns, row, strict=True)) for row in rows],
                "members": [
                    {
                        "id": m.id, "client_id": m.client_id, "host": m.host,
                        "partitions": [str(p) for p in m.partitions],
                    }
                    for m in those
                ],
            }
        )  # fmt: skip
        return
    print(f"{name}: {info.state}, {len(those)} members, {len(dead)} dead letters")
    print_table(columns, rows)
    if dead:
        print_table(["topic", "partition", "offset", "deliveries", "reason"], [list(d.values()) for d in dead])


@app.command("redrive")
def redrive_queue(
    name: GroupArgument,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="No more than this.")] = None,
    execute: ExecuteOption = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Append the records of a queue's dead letters to their topics again, for a new try.

    Each letter is redriven once; every group that reads the topic sees the record again. Without --execute it is
    only shown.

    Example: headwater queue redrive workers --execute
    """
    from headwater.clock import SystemClock
    from headwater.record import Record
    from headwater.transmit import group_client
    from headwater.transmit.batch import encode_batch
    from headwater.transmit.client import Client

    clock = SystemClock()
    redriven, lost = 0, 0
    with Client(bootstrap_servers) as client:
        _find(client, name)
        found, has_copies = _letters(client, name)
        for place, letter, origin in found[:limit]:
            record = _original(client, origin) or (_without_origin(letter) if has_copies else None)
            if record is None:
                lost += 1
            elif execute:
                again = Record(
                    key=record.key, value=record.value, headers=record.headers, timestamp_ms=clock.now_ms()
                )
                client.produce(origin.partition, encode_batch([again]))
            redriven += record is not None
            if execute:
                group_client.commit(client, name + REDRIVE_SUFFIX, {place: letter.offset + 1})
    if output is OutputFormat.JSON:
        print_json({"queue": name, "executed": execute, "redriven": redriven, "lost": lost})
        return
    print(f"{redriven} dead letters of {name} {'were redriven' if execute else 'can be redriven'}")
    if lost:
        print(f"{lost} have no record any more: the log has deleted it and the letter holds no copy")
    if not execute:
        print("nothing was changed; --execute does it")


@app.command("purge")
def purge_queue(
    name: GroupArgument,
    execute: ExecuteOption = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Skip every record that waits in a queue without members. Without --execute it is only shown.

    Example: headwater queue purge workers --execute
    """
    from headwater.transmit import group_client
    from headwater.transmit.client import LATEST, Client

    with Client(bootstrap_servers) as client:
        _find(client, name)
        starts = group_client.share_starts(client, name)
        waiting = sum(max(start.lag_records, 0) for start in starts.values())
        if execute:
            group_client.move_share(client, name, client.offsets(starts, LATEST))
    if output is OutputFormat.JSON:
        print_json({"queue": name, "executed": execute, "purged": waiting})
        return
    print(f"{waiting} records of {name} {'were skipped' if execute else 'wait'}")
    if not execute:
        print("nothing was changed; --execute skips them")


def _find(client: "Client", name: str) -> Any:
    from headwater.errors import InvalidError
    from headwater.transmit import group_client

    info = group_client.find_group(client, name)
    if info.kind != group_client.SHARE:
        raise InvalidError(
            f"{name!r} is no queue but a {info.kind} group", hint=f"headwater group describe {name}"
        )
    return info


def _letters(client: "Client", group: str) -> "tuple[list[tuple[TopicPartition, Record, Any]], bool]":
    """A queue's dead letters that were not redriven, and whether they hold the records themselves."""
    from headwater.cli.topic import records_of
    from headwater.record import TopicPartition
    from headwater.transmit import group_client
    from headwater.transmit.deadletters import origin_of
    from headwater.transmit.group_configs import DEADLETTER_TOPIC, GroupSettings

    configs = group_client.group_configs(client, group)
    settings = GroupSettings(configs=configs)
    topic = configs.get(DEADLETTER_TOPIC, "")
    if not topic or topic not in client.topics():
        return [], False
    done = group_client.committed(client, group + REDRIVE_SUFFIX)
    found = []
    for number, record in records_of(client, topic, None):
        place, origin = TopicPartition(topic, number), origin_of(record)
        if origin is not None and origin.group == group and record.offset >= done.get(place, 0):
            found.append((place, record, origin))
    return found, settings.copies_record


def _original(client: "Client", origin: Any) -> "Record | None":
    """The record itself, if the log still has it."""
    from headwater.errors import HeadwaterError
    from headwater.transmit.batch import decode_batch, walk

    try:
        data, _ = client.read(origin.partition, origin.offset)
    except HeadwaterError:
        return None
    found = (record for at, _ in walk(data) for record in decode_batch(data, at))
    return next((record for record in found if record.offset == origin.offset), None)


def _without_origin(letter: "Record") -> "Record":
    from headwater.record import Record
    from headwater.transmit.deadletters import PREFIX

    own = tuple(header for header in letter.headers if not header[0].startswith(PREFIX))
    return Record(key=letter.key, value=letter.value, headers=own)
