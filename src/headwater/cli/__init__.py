"""The command line: one file for each group of commands. Here the parts are joined.

Commands import what they need when they run, so that `headwater --help` does not wait for Spark.
"""

import os
import sys

import typer

from headwater.cli.commands import (
    broker,
    deadletter,
    demo,
    doctor,
    group,
    late,
    log,
    pipeline,
    queue,
    quota,
    rebuild,
    run,
    sql,
    topic,
    topic_admin,
    transcript,
    view,
)
from headwater.errors import HeadwaterError, UnavailableError

app = typer.Typer(
    name="headwater",
    help="A log that Kafka clients use unchanged, processing on Spark, views and a console.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", rich_help_panel="Apps")(run.run)
app.command("demo", rich_help_panel="Apps")(demo.demo)
app.add_typer(view.app, name="view", rich_help_panel="Apps")
app.command("sql", rich_help_panel="Apps")(sql.sql)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel="Apps")
app.add_typer(late.app, name="late", rich_help_panel="Apps")
app.command("rebuild", rich_help_panel="Apps")(rebuild.rebuild)
app.command("transcript", rich_help_panel="Apps")(transcript.transcript)
app.command("broker", rich_help_panel="The log")(broker.broker)
topic_admin.add_commands(topic.app)
app.add_typer(topic.app, name="topic", rich_help_panel="The log")
app.add_typer(group.app, name="group", rich_help_panel="The log")
app.add_typer(queue.app, name="queue", rich_help_panel="The log")
app.add_typer(deadletter.app, name="deadletter", rich_help_panel="The log")
app.add_typer(quota.app, name="quota", rich_help_panel="The log")
app.add_typer(log.app, name="log", rich_help_panel="The log")
app.command("doctor", rich_help_panel="This machine")(doctor.doctor)

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


def main() -> None:
    """Run a command; a mistake of the user's is told in words, with a traceback only on request."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        told = error if isinstance(error, HeadwaterError) else _as_ours(error)
        if told is None or os.environ.get("HEADWATER_TRACEBACK"):
            raise
        print(f"error: {told}", file=sys.stderr)
        if told.hint:
            print(f"hint: {told.hint}", file=sys.stderr)
        sys.exit(told.exit_code)


def _as_ours(error: Exception) -> HeadwaterError | None:
    """A full disk is no mistake of ours, wherever it is met: in Python, in SQLite, in Spark's Java."""
    from headwater.spark.pipeline.failures import lack_of_room

    found = lack_of_room(str(error))
    if found is None:
        return None
    hint = "make room and start it again: it goes on where it was"
    return UnavailableError(f"cannot go on, the disk is full: {found}", hint=hint)
