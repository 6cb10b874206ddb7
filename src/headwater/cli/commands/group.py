"""`headwater group`: list groups with their lag, reset their offsets, delete them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import BootstrapOption, ExecuteOption, GroupArgument
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from headwater.record import TopicPartition
    from headwater.transmit.client.client import Client

app = typer.Typer(help="List and describe groups, reset their offsets, delete them.", no_args_is_help=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The new offset of a group: one of these, or the oldest record if none is set."""

    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None


@app.command("list")
def list_groups(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List groups of all types with their state and lag.

    Example: headwater group list --output json
    """
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.lag import positions

    with Client(bootstrap_servers) as client:
        groups = [
            {
                "group": info.id,
                "type": info.kind,
                "state": info.state,
                "lag_records": sum(at.lag_records for at in positions(client, info).values()),
            }
            for info in group_client.list_groups(client)
        ]
    if output is OutputFormat.JSON:
        print_json({"groups": groups})
    else:
        print_table(["group", "type", "state", "lag_records"], [list(group.values()) for group in groups])


@app.command("describe")
def describe_group(
    name: GroupArgument,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the group's offset in each partition, and the member that reads it.

    `at_risk_records` is the number of unread records that retention will delete soon.

    Example: headwater group describe readers
    """
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.lag import positions

    with Client(bootstrap_servers) as client:
        info = group_client.find_group(client, name)
        members = group_client.members(client, info)
        found = positions(client, info)
    readers = {tp: member for member in members for tp in member.partitions}
    rows: list[dict[str, Any]] = []
    for tp in sorted({*found, *readers}):
        at, member = found.get(tp), readers.get(tp)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": at and at.offset,
                "end": at and at.end,
                "lag_records": at and at.lag_records,
                "at_risk_records": at and at.at_risk_records,
                "member": member.id if member else None,
                "host": member.host if member else None,
            }
        )
    if output is OutputFormat.JSON:
        print_json(
            {
                "group": info.id, "type": info.kind, "state": info.state, "partitions": rows,
                "members": [{"id": m.id, "client_id": m.client_id, "host": m.host} for m in members],
            }
        )  # fmt: skip
        return
    print(f"{info.id}: {info.kind}, {info.state}, {len(members)} members")
    print_table(
        ["topic", "partition", "offset", "end", "lag_records", "at_risk_records", "member", "host"],
        [list(row.values()) for row in rows],
    )
    if sum(row["at_risk_records"] or 0 for row in rows):
        print(
            "retention will soon delete records that the group has not read: let it catch up, "
            "or increase retention.ms or retention.bytes of the topic"
        )


@app.command("reset-offsets")
def reset_offsets(  # an option for each of the verbs that Kafka's own tool has
    name: GroupArgument,
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="Topic or topic:partition; may be repeated.")],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end of the log.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Reset to this offset.")] = None,
    to_datetime: Annotated[
        datetime | None, typer.Option(help="Reset to the first record at or after this time, in UTC by default.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="Reset to the first record no older than this, such as PT1H.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(help="Shift by this many records; negative shifts back.")] = None,
    execute: ExecuteOption = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:  # fmt: skip
    """Reset the offsets of a group without members. Without --execute, only show the new offsets.

    Example: headwater group reset-offsets readers --topic orders --to-earliest --execute
    """
    from headwater.clock import SystemClock
    from headwater.errors import InvalidError
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client
    from headwater.transmit.groups.settings import duration_ms

    time_ms: int | None = None
    if to_datetime is not None:
        aware = to_datetime if to_datetime.tzinfo else to_datetime.replace(tzinfo=UTC)
        time_ms = round(aware.timestamp() * 1000)
    if by_duration is not None:
        time_ms = SystemClock().now_ms() - duration_ms(by_duration)
    verbs = [to_earliest, to_latest, to_offset is not None, to_datetime is not None, by_duration is not None]
    if sum([*verbs, shift_by is not None]) != 1:
        raise InvalidError(
            "cannot reset offsets: pass exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime, "
            "--by-duration and --shift-by"
        )
    target = Target(latest=to_latest, offset=to_offset, time_ms=time_ms, shift=shift_by)
    with Client(bootstrap_servers) as client:
        partitions = _parse_partitions(client, topic)
        before = group_client.committed(client, name)
        after = _offsets_at(client, partitions, before, target)
        if execute:
            group_client.commit(client, name, after)
    rows = [[tp.topic, tp.partition, before.get(tp), after[tp]] for tp in partitions]
    columns = ["topic", "partition", "before", "after"]
    if output is OutputFormat.JSON:
        offsets = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"group": name, "executed": execute, "offsets": offsets})
    else:
        print_table(columns, rows)
        if not execute:
            print("nothing changed; pass --execute to make the change")


@app.command("delete")
def delete_group(name: GroupArgument, bootstrap_servers: BootstrapOption = "127.0.0.1:9092") -> None:
    """Delete a group without members, and its committed offsets.

    Example: headwater group delete readers
    """
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client

    with Client(bootstrap_servers) as client:
        group_client.delete(client, name)
    print(f"group {name} deleted")


def _offsets_at(
    client: "Client", partitions: "list[TopicPartition]", before: "dict[TopicPartition, int]", target: Target
) -> "dict[TopicPartition, int]":
    """Return the offsets of a target, limited to the range of offsets in the log."""
    from headwater.record import EARLIEST, LATEST

    first, last = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
    wanted = last if target.latest else first
    if target.offset is not None:
        wanted = dict.fromkeys(partitions, target.offset)
    elif target.shift is not None:
        wanted = {tp: before.get(tp, first[tp]) + target.shift for tp in partitions}
    elif target.time_ms is not None:
        found = client.offsets(partitions, target.time_ms)
        wanted = {tp: last[tp] if found[tp] < 0 else found[tp] for tp in partitions}
    return {tp: min(max(wanted[tp], first[tp]), last[tp]) for tp in partitions}


def _parse_partitions(client: "Client", names: list[str]) -> "list[TopicPartition]":
    """Parse names such as `orders` or `orders:3`."""
    from headwater.errors import InvalidError
    from headwater.record import TopicPartition

    found: list[TopicPartition] = []
    for text in names:
        name, _, number = text.partition(":")
        info = client.topics([name]).get(name)
        if info is None:
            raise InvalidError(f"topic {name!r} does not exist", hint="headwater topic list")
        if number and (not number.isdigit() or int(number) not in info.leaders):
            raise InvalidError(f"topic {name!r} has no partition {number!r}")
        numbers = [int(number)] if number else sorted(info.leaders)
        found += [TopicPartition(name, n) for n in numbers]
    return found
