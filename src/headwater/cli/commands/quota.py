"""`headwater quota`: how fast clients may produce and fetch."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.commands.topic import BootstrapOption
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from headwater.transmit.quotas import Entity

app = typer.Typer(help="List, set and remove quotas of clients and users.", no_args_is_help=True)

UserOption = Annotated[str | None, typer.Option("--user", help="For this user; nobody logs in: ANONYMOUS.")]
ClientOption = Annotated[str | None, typer.Option("--client-id", help="For clients of this client.id.")]
UserDefaultOption = Annotated[
    bool, typer.Option("--user-default", help="For each user without a quota of its own.")
]
ClientDefaultOption = Annotated[
    bool, typer.Option("--client-id-default", help="For each client.id without a quota of its own.")
]


@app.command("list")
def list_all(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List every quota and whom it is for.

    Example: headwater quota list --output json
    """
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.quotas import list_quotas

    with Client(bootstrap_servers) as client:
        found = list_quotas(client)
    if output is OutputFormat.JSON:
        print_json({"quotas": [{**_as_json(entity), "values": values} for entity, values in found.items()]})
    else:
        rows = [[str(entity), key, value] for entity, values in found.items() for key, value in values.items()]
        print_table(["for", "quota", "value"], rows)


@app.command("set")
def set_quotas(
    values: Annotated[list[str], typer.Argument(help="NAME=VALUE, such as producer_byte_rate=1048576.")],
    user: UserOption = None,
    client_id: ClientOption = None,
    user_default: UserDefaultOption = False,
    client_id_default: ClientDefaultOption = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Set quotas: producer_byte_rate and consumer_byte_rate in bytes a second, request_percentage of a thread.

    Example: headwater quota set producer_byte_rate=1048576 --client-id loader
    """
    changes: dict[str, float | None] = {}
    for text in values:
        key, found, value = text.partition("=")
        changes[key] = _number(text, value if found else "")
    entity = _entity(user, client_id, user_default=user_default, client_id_default=client_id_default)
    _alter(bootstrap_servers, entity, changes, output)


@app.command("remove")
def remove_quotas(
    names: Annotated[list[str], typer.Argument(help="Names of quotas, such as producer_byte_rate.")],
    user: UserOption = None,
    client_id: ClientOption = None,
    user_default: UserDefaultOption = False,
    client_id_default: ClientDefaultOption = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Remove quotas; the next more general one holds, if there is one.

    Example: headwater quota remove producer_byte_rate --client-id loader
    """
    entity = _entity(user, client_id, user_default=user_default, client_id_default=client_id_default)
    _alter(bootstrap_servers, entity, dict.fromkeys(names), output)


def _alter(servers: str, entity: "Entity", changes: "dict[str, float | None]", output: OutputFormat) -> None:
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.quotas import alter_quotas, list_quotas

    with Client(servers) as client:
        # Asked before, because Apache Kafka may not know yet what it has just been told.
        before = list_quotas(client).get(entity, {})
        alter_quotas(client, entity, changes)
    left = {key: value for key, value in {**before, **changes}.items() if value is not None}
    if output is OutputFormat.JSON:
        print_json({**_as_json(entity), "values": left})
    else:
        said = ", ".join(f"{key} = {value:.10g}" for key, value in left.items())
        print(f"{entity}: {said or 'no quotas'}")


def _entity(user: str | None, client_id: str | None, *, user_default: bool, client_id_default: bool) -> "Entity":
    from headwater.errors import InvalidError
    from headwater.transmit.quotas import DEFAULT, Entity

    if (user is not None and user_default) or (client_id is not None and client_id_default):
        raise InvalidError("say either a name or the default, not both")
    if "" in (user, client_id):
        raise InvalidError("a name is empty", hint="--user-default and --client-id-default mean everybody else")
    entity = Entity(DEFAULT if user_default else user, DEFAULT if client_id_default else client_id)
    if entity == Entity():
        raise InvalidError(
            "say whom the quota is for", hint="--client-id, --user, --client-id-default or --user-default"
        )
    return entity


def _number(text: str, value: str) -> float:
    from headwater.errors import InvalidError

    try:
        return float(value)
    except ValueError:
        raise InvalidError(f"cannot read {text!r}: expected NAME=NUMBER") from None


def _as_json(entity: "Entity") -> dict[str, Any]:
    """As Kafka has it: a part that is there without a name is the default."""
    from headwater.transmit.quotas import DEFAULT, ENTITY_TYPES

    return {
        "entity": {
            kind: None if name == DEFAULT else name
            for kind, name in zip(ENTITY_TYPES, entity, strict=True)
            if name is not None
        }
    }
