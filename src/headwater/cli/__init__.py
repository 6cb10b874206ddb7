"""The command line. `commands` has one module for each group of commands; here they are registered.

    options, addresses, output, log_format   shared by all commands
    app_file, view_store                     load an app; open its views

A command imports what it needs when it runs, so that `headwater --help` does not wait for Spark.
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
app.add_typer(topic.app, name="topic", rich_help_panel="The log")
app.add_typer(group.app, name="group", rich_help_panel="The log")
app.add_typer(queue.app, name="queue", rich_help_panel="The log")
app.add_typer(deadletter.app, name="deadletter", rich_help_panel="The log")
app.add_typer(quota.app, name="quota", rich_help_panel="The log")
app.add_typer(log.app, name="log", rich_help_panel="The log")
app.command("doctor", rich_help_panel="This machine")(doctor.doctor)

INTERRUPTED = 130  # exit code that shells report for a program stopped with Ctrl-C


def main() -> None:
    """Run a command; print a user's mistake as a message, with a traceback only if HEADWATER_TRACEBACK is set."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        reported = error if isinstance(error, HeadwaterError) else _full_disk(error)
        if reported is None or os.environ.get("HEADWATER_TRACEBACK"):
            raise
        print(f"error: {reported}", file=sys.stderr)
        if reported.hint:
            print(f"hint: {reported.hint}", file=sys.stderr)
        sys.exit(reported.exit_code)


def _full_disk(error: Exception) -> HeadwaterError | None:
    """Return a message for an error caused by a full disk, in Python, SQLite or Spark's Java; None for others."""
    from headwater.spark.pipeline.failures import disk_full_line

    found = disk_full_line(str(error))
    if found is None:
        return None
    hint = "free some space and start again: it continues where it stopped"
    return UnavailableError(f"cannot continue, the disk is full: {found}", hint=hint)
