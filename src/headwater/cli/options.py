"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers", "-b", help="Address of the log, host:port.", envvar="HEADWATER_BOOTSTRAP_SERVERS"
    ),
]
DataOption = Annotated[Path, typer.Option("--data", help="Data directory of the app.", envvar="HEADWATER_DATA")]
DATA = Path(".headwater")
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Address of the PostgreSQL database with the views; defaults to the one recorded in --data.",
        envvar="HEADWATER_STORE",
    ),
]
ViewArgument = Annotated[str, typer.Argument(help="Name of the view.")]
TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]
GroupArgument = Annotated[str, typer.Argument(help="Name of the group.")]
AppOption = Annotated[str | None, typer.Option("--app", help="Name of the app, if the file has several.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Maximum number of rows.")]
ExecuteOption = Annotated[
    bool, typer.Option("--execute", help="Make the change; without it, only show what would change.")
]
