"""`headwater topic`: the topics of a log."""

from typing import Annotated

import typer

from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

app = typer.Typer(help="List and create topics.", no_args_is_help=True)

BootstrapOption = Annotated[
    str,
    typer.Option("--bootstrap-servers", "-b", help="host:port of the log.", envvar="HEADWATER_BOOTSTRAP_SERVERS"),
]


@app.command("list")
def list_topics(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List topics, with their partitions and records.

    Example: headwater topic list --output json
    """
    from headwater.record import TopicPartition
    from headwater.transmit.client import EARLIEST, LATEST, Client

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
    name: Annotated[str, typer.Argument(help="Name of the topic.")],
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions.")] = 1,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
) -> None:
    """Create a topic.

    Example: headwater topic create orders --partitions 3
    """
    from headwater.transmit.client import Client

    with Client(bootstrap_servers) as client:
        client.create_topic(name, partitions=partitions)
    print(f"topic {name} is there, with {partitions} partitions asked for")
