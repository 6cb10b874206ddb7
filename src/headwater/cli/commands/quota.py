"""`headwater quota`: limit the rates of clients and users."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import BootstrapOption
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from headwater.transmit.quotas import Entity

app = typer.Typer(help="List, set and remove quotas of clients and users.", no_args_is_help=True)

UserOption = Annotated[
    str | None,
    typer.Option("--user", help="User that the quota is for; without authentication every user is ANONYMOUS."),
]
ClientOption = Annotated[str | None, typer.Option("--client-id", help="client.id that the quota is for.")]
UserDefaultOption = Annotated[
    bool, typer.Option("--user-default", help="Default for each user without a quota of its own.")
]
ClientDefaultOption = Annotated[
    bool, typer.Option("--client-id-default", help="Default for each client.id without a quota of its own.")
]


@app.command("list")
def list_all(
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092", output: OutputOption = OutputFormat.TEXT
) -> None:
    """List all quotas and the users and clients they are for.

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
    """Set quotas: producer_byte_rate and consumer_byte_rate in bytes per second, request_percentage of one thread.

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
    """Remove quotas; the next more general quota applies, if there is one.

    Example: headwater quota remove producer_byte_rate --client-id loader
    """
    entity = _entity(user, client_id, user_default=user_default, client_id_default=client_id_default)
    _alter(bootstrap_servers, entity, dict.fromkeys(names), output)


def _alter(servers: str, entity: "Entity", changes: "dict[str, float | None]", output: OutputFormat) -> None:
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.quotas import alter_quotas, list_quotas

    with Client(servers) as client:
        # Read before the change, because Apache Kafka may return the old quotas for a while after it.
        before = list_quotas(client).get(entity, {})
        alter_quotas(client, entity, changes)
    left = {key: value for key, value in {**before, **changes}.items() if value is not None}
    if output is OutputFormat.JSON:
        print_json({**_as_json(entity), "values": left})
    else:
        text = ", ".join(f"{key} = {value:.10g}" for key, value in left.items())
        print(f"{entity}: {text or 'no quotas'}")


def _entity(user: str | None, client_id: str | None, *, user_default: bool, client_id_default: bool) -> "Entity":
    from headwater.errors import InvalidError
    from headwater.transmit.quotas import DEFAULT, Entity

    if (user is not None and user_default) or (client_id is not None and client_id_default):
        raise InvalidError("cannot set quotas: pass either a name or the default, not both")
    if "" in (user, client_id):
        raise InvalidError(
            "cannot set quotas: the name is empty", hint="use --user-default or --client-id-default for all others"
        )
    entity = Entity(DEFAULT if user_default else user, DEFAULT if client_id_default else client_id)
    if entity == Entity():
        raise InvalidError(
            "cannot set quotas: no user or client is named",
            hint="pass --client-id, --user, --client-id-default or --user-default",
        )
    return entity


def _number(text: str, value: str) -> float:
    from headwater.errors import InvalidError

    try:
        return float(value)
    except ValueError:
        raise InvalidError(f"cannot read {text!r}: expected NAME=NUMBER") from None


def _as_json(entity: "Entity") -> dict[str, Any]:
    """Return an entity as Kafka's tools show it, where null is the default entity."""
    from headwater.transmit.quotas import DEFAULT, ENTITY_TYPES

    return {
        "entity": {
            kind: None if name == DEFAULT else name
            for kind, name in zip(ENTITY_TYPES, entity, strict=True)
            if name is not None
        }
    }
