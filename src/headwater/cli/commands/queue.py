"""`headwater queue`: share groups, their waiting records and their dead letters."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import BootstrapOption, ExecuteOption, GroupArgument
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import RedriveMarks
    from headwater.transmit.records.dead_letters import DeadLetter

app = typer.Typer(help="List queues (share groups), redrive their dead letters, purge them.", no_args_is_help=True)


@app.command("list")
def list_queues(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List share groups with their members, waiting records and dead letters that were not redriven.

    Example: headwater queue list --output json
    """
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import RedriveMarks

    queues: list[dict[str, Any]] = []
    with Client(bootstrap_servers) as client:
        marks = RedriveMarks(client)
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
                        "dead_letters": len(_letters(client, info.id, marks)),
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
    """Show the position of a share group in each partition, its configs and its dead letters.

    Example: headwater queue show workers
    """
    from headwater.record import LATEST
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import RedriveMarks

    with Client(bootstrap_servers) as client:
        info = _find(client, name)
        starts = group_client.share_starts(client, name)
        ends = client.offsets(starts, LATEST)
        members = group_client.members(client, info)
        configs = group_client.group_configs(client, name)
        letters = _letters(client, name, RedriveMarks(client))
    columns = ["topic", "partition", "start", "end", "waiting_records"]
    rows = [[*tp, start.start, ends[tp], start.lag_records] for tp, start in sorted(starts.items())]
    dead = [
        {
            "topic": letter.origin.topic,
            "partition": letter.origin.partition,
            "offset": letter.origin_offset,
            "deliveries": letter.deliveries,
            "reason": letter.reason,
        }
        for letter in letters
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
                    for m in members
                ],
            }
        )  # fmt: skip
        return
    print(f"{name}: {info.state}, {len(members)} members, {len(dead)} dead letters")
    print_table(columns, rows)
    if dead:
        print_table(["topic", "partition", "offset", "deliveries", "reason"], [list(d.values()) for d in dead])


@app.command("redrive")
def redrive_queue(
    name: GroupArgument,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of dead letters.")
    ] = None,
    execute: ExecuteOption = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Append the records of a queue's dead letters to their topics again, for another attempt.

    Each dead letter is redriven once. Every group that reads the topic receives the record again.
    Without --execute, only show what would be redriven.

    Example: headwater queue redrive workers --execute
    """
    from headwater.clock import SystemClock
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import RedriveMarks, original_of, redrive
    from headwater.transmit.records.dead_letters import restore

    with Client(bootstrap_servers) as client:
        _find(client, name)
        marks = RedriveMarks(client)
        letters = _letters(client, name, marks)[:limit]
        if execute:
            lost = sum(outcome.lost for outcome in redrive(client, letters, marks, SystemClock()))
        else:
            lost = sum(restore(letter, original_of(client, letter), now_ms=0) is None for letter in letters)
    redriven = len(letters) - lost
    if output is OutputFormat.JSON:
        print_json({"queue": name, "executed": execute, "redriven": redriven, "lost": lost})
        return
    print(f"{redriven} dead letters of {name} {'were redriven' if execute else 'can be redriven'}")
    if lost:
        print(f"{lost} cannot be redriven: the log has deleted the record and the dead letter has no copy")
    if not execute:
        print("nothing changed; pass --execute to make the change")


@app.command("purge")
def purge_queue(
    name: GroupArgument,
    execute: ExecuteOption = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Skip all waiting records of a queue without members. Without --execute, only show how many.

    Example: headwater queue purge workers --execute
    """
    from headwater.record import LATEST
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client

    with Client(bootstrap_servers) as client:
        _find(client, name)
        starts = group_client.share_starts(client, name)
        waiting = sum(max(start.lag_records, 0) for start in starts.values())
        if execute:
            group_client.move_share(client, name, client.offsets(starts, LATEST))
    if output is OutputFormat.JSON:
        print_json({"queue": name, "executed": execute, "purged": waiting})
        return
    print(f"{waiting} records of {name} {'were skipped' if execute else 'are waiting'}")
    if not execute:
        print("nothing changed; pass --execute to skip them")


def _find(client: "Client", name: str) -> Any:
    from headwater.errors import InvalidError
    from headwater.transmit.client import groups as group_client

    info = group_client.find_group(client, name)
    if info.kind != group_client.SHARE:
        raise InvalidError(
            f"{name!r} is a {info.kind} group, not a queue", hint=f"headwater group describe {name}"
        )
    return info


def _letters(client: "Client", group: str, marks: "RedriveMarks") -> "list[DeadLetter]":
    """Return the dead letters of a queue that were not redriven."""
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.redrive import letters_of
    from headwater.transmit.groups.settings import DEADLETTER_TOPIC

    topic = group_client.group_configs(client, group).get(DEADLETTER_TOPIC, "")
    if not topic or topic not in client.topics():
        return []
    marks.refresh()
    return [x for x in letters_of(client, topic) if x.queue == group and not marks.finished(x)]
