"""`headwater topic describe|configs|alter|delete`: administer topics."""

from typing import Annotated

import typer

from headwater.cli.options import BootstrapOption, TopicArgument
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table


def describe_topic(
    name: TopicArgument,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the partitions of a topic with their offsets, and the configs that differ from the default.

    Example: headwater topic describe orders --output json
    """
    from headwater.record import TopicPartition
    from headwater.transmit.client.client import EARLIEST, LATEST, Client
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
    from headwater.errors import InvalidError
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


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `headwater topic`."""
    app.command("describe")(describe_topic)
    app.command("configs")(topic_configs)
    app.command("alter")(alter_topic)
    app.command("delete")(delete_topic)
