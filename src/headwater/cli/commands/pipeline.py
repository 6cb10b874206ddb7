"""`headwater pipeline`: show and control an app's queries, one by one, while the others run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import DATA, DataOption, StoreOption
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.cli.view_store import open_store
from headwater.errors import HeadwaterError, InvalidError, UnavailableError

if TYPE_CHECKING:
    from headwater.store.pipelines.controls import Action, Controls
    from headwater.store.pipelines.facts import FactStore

app = typer.Typer(help="Show and control an app's pipelines.", no_args_is_help=True)

PipelineArgument = Annotated[str, typer.Argument(help="Name of the view, sink or dead-letter topic.")]

ANSWER_EVERY_S, ANSWER_MAX_S = 0.2, 120.0
"""A running app answers between two looks at its pipelines; starting one takes it some seconds."""

_ACTIVE = ("starting", "running", "waiting", "isolating")
"""States that only a pipeline of a running app can have."""

_DROPPED = {
    "lateRows": "late",
    "ignoredRows": "ignored",
    "leftOutRecords": "excluded",
    "deadLetters": "dead letters",
}


@app.command("list")
def list_pipelines(data: DataOption = DATA, output: OutputOption = OutputFormat.TEXT) -> None:
    """List pipelines with their state, lag, estimated time to catch up, and what is not in their results.

    Example: headwater pipeline list
    """
    from headwater.assembly.run import is_running
    from headwater.clock import SystemClock
    from headwater.serve.api.status import summarize_all

    found = summarize_all(_facts(data), SystemClock())
    if not is_running(data):  # An app that was killed could not report it.
        for pipeline in found:
            pipeline["state"] = "stopped" if pipeline["state"] in _ACTIVE else pipeline["state"]
    if output is OutputFormat.JSON:
        print_json({"pipelines": [{name: p[name] for name in p if name != "history"} for p in found]})
        return
    columns = ["pipeline", "state", "batch", "rows/s", "behind", "caught up in", "not in the result", "error"]
    rows = [
        [
            *(p["name"], p["state"], p["batchId"], _rate(p), p["behindRecords"], _catch_up(p)),
            *(_dropped(p), _first_line(p["error"])),
        ]
        for p in found
    ]
    print_table(columns, rows)


@app.command("pause")
def pause(name: PipelineArgument, data: DataOption = DATA, address: StoreOption = None) -> None:
    """Stop a pipeline between two batches; it stays paused, also when the app starts again.

    Example: headwater pipeline pause revenue
    """
    from headwater.store.pipelines.controls import Action

    if _request(name, Action.PAUSE, data, address):
        print(f"{name} is paused; `headwater pipeline resume {name}` continues it")
    else:
        print(f"{name} will be paused when the app runs next")


@app.command("resume")
def resume(name: PipelineArgument, data: DataOption = DATA, address: StoreOption = None) -> None:
    """Continue a paused or suspended pipeline where it stopped.

    Example: headwater pipeline resume revenue
    """
    from headwater.store.pipelines.controls import Action

    if _request(name, Action.RESUME, data, address):
        print(f"{name} runs again; `headwater pipeline list` shows how far behind it is")
    else:
        print(f"{name} will run when the app runs next")


@app.command("reset")
def reset(name: PipelineArgument, data: DataOption = DATA, address: StoreOption = None) -> None:
    """Discard the results and the state of a pipeline, and start it again with the first record.

    To keep the current rows of a view readable until the new ones are complete, use `headwater rebuild`.

    Example: headwater pipeline reset revenue
    """
    from headwater.store.pipelines.controls import Action

    if _request(name, Action.RESET, data, address):
        print(f"{name} starts again with the first record; `headwater pipeline list` shows how far behind it is")
    else:
        print(f"{name} will start with the first record when the app runs next")


def _request(name: str, action: "Action", data: Path, address: str | None) -> bool:
    """Ask the running app, and wait until it has answered; False if none runs, and the next one will do it."""
    from headwater.assembly.run import is_running
    from headwater.store.pipelines.controls import Controls

    known = _facts(data).queries()
    if name not in known:
        raise InvalidError(f"cannot {action} {name!r}: no pipeline has this name; there are: {', '.join(known)}")
    controls = Controls(open_store(data, address, to_write=True))
    controls.request(name, action)
    if not is_running(data):
        return False
    _await_answer(controls, name, action)
    return True


def _await_answer(controls: "Controls", name: str, action: "Action") -> None:
    deadline = time.monotonic() + ANSWER_MAX_S
    while controls.is_waiting(name):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"cannot {action} {name!r} yet: the app has not answered for {ANSWER_MAX_S:.0f} s",
                hint="it will do so when it can; `headwater pipeline list` shows the state",
            )
        time.sleep(ANSWER_EVERY_S)
    if (refusal := controls.refusal(name)) is not None:
        raise HeadwaterError(f"cannot {action} {name!r}: {refusal}")


def _facts(data: Path) -> "FactStore":
    from headwater.store.pipelines.facts import FactStore

    path = data / "facts.db"
    if not path.exists():
        raise InvalidError(
            f"no pipeline has run in {str(data)!r}",
            hint="run the app first (`headwater run APP.py`), or pass its data directory with --data",
        )
    return FactStore(path)


def _rate(pipeline: dict[str, Any]) -> int | None:
    rate = pipeline["processedRowsPerSecond"]
    return None if rate is None else round(rate)


def _catch_up(pipeline: dict[str, Any]) -> str:
    if pipeline["state"] not in _ACTIVE:
        return ""
    seconds = pipeline["catchUpSeconds"]
    if seconds is None:
        return "falling behind" if pipeline["behindRecords"] else ""
    if seconds == 0:
        return "up to date"
    return f"about {seconds:,.0f} s" if seconds < 600 else f"about {seconds / 60:,.0f} min"


def _dropped(pipeline: dict[str, Any]) -> str:
    """Return what the pipeline has read that is not in its result."""
    return ", ".join(f"{pipeline[name]:,} {kind}" for name, kind in _DROPPED.items() if pipeline[name])


def _first_line(error: str | None) -> str:
    return (error or "").partition("\n")[0]
