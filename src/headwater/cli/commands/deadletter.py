"""`headwater deadletter`: list, show and redrive records that pipelines or queues could not process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import BootstrapOption
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.errors import InvalidError

if TYPE_CHECKING:
    from headwater.record import Record, TopicPartition
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import Outcome, RedriveMarks
    from headwater.transmit.records.dead_letters import DeadLetter

app = typer.Typer(help="List records that could not be processed, and redrive them.", no_args_is_help=True)

DeadLetterTopicArgument = Annotated[str, typer.Argument(help="The dead-letter topic.", show_default=False)]
_LETTER = "Offset of the dead letter, or PARTITION@OFFSET such as 2@17."


@app.command("list")
def list_letters(
    topic: Annotated[
        str | None,
        typer.Argument(help="A dead-letter topic; defaults to listing all of them.", show_default=False),
    ] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Leave out dead letters that were redriven.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of dead letters to show, newest first.")
    ] = 100,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List the dead-letter topics, or the dead letters of one topic.

    Example: headwater deadletter list

    Example: headwater deadletter list orders.deadletter --waiting
    """
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import RedriveMarks, dead_letter_topics, letters_of

    with Client(bootstrap_servers) as client:
        marks = RedriveMarks(client)
        marks.refresh()
        if topic is None:
            _print_topics([_describe_topic(client, name, marks) for name in dead_letter_topics(client)], output)
            return
        found = [x for x in letters_of(client, topic) if not (waiting and marks.finished(x))]
    letters = [_describe(letter, marks) for letter in found[-limit:]]
    if output is OutputFormat.JSON:
        print_json({"topic": topic, "letters": letters})
        return
    rows = [
        [f"{x['partition']}@{x['offset']}", _place(x["origin"]), x["by"], _redriven_to(x["redriven"]), x["reason"]]
        for x in letters
    ]
    print_table(["letter", "record", "by", "redriven to", "reason"], rows)
    if len(found) > limit:
        print(f"{len(found) - limit} older dead letters not shown; use --limit to show more")


@app.command("show")
def show_letter(
    topic: DeadLetterTopicArgument,
    letter: Annotated[str, typer.Argument(help=_LETTER, show_default=False)],
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show a dead letter: the record, its original position, and the reason.

    Example: headwater deadletter show orders.deadletter 17
    """
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import RedriveMarks, letter_at, original_of
    from headwater.transmit.records.dead_letters import restore

    with Client(bootstrap_servers) as client:
        found = letter_at(client, *_place_of(topic, letter))
        marks = RedriveMarks(client)
        marks.refresh()
        record = restore(found, original_of(client, found), now_ms=found.record.timestamp_ms)
    described = _describe(found, marks) | {"record": None if record is None else _describe_record(record)}
    if output is OutputFormat.JSON:
        print_json(described)
        return
    print(f"letter   {found.name}, by {described['by']}")
    print(f"record   {_place(described['origin'])}")
    print(f"reason   {found.reason}")
    if described["redriven"] is not None:
        print(f"redriven {_redriven_to(described['redriven'])}")
    if described["record"] is None:
        print("the log has deleted the record, and the dead letter has no copy")
        return
    for name, value in described["record"]["headers"]:
        print(f"header   {name} = {_shown(value)}")
    print(f"key      {_shown(described['record']['key'])}")
    print(f"value    {_shown(described['record']['value'])}")


@app.command("redrive")
def redrive_letters(
    topic: DeadLetterTopicArgument,
    letter: Annotated[str | None, typer.Argument(help=_LETTER, show_default=False)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Redrive every dead letter that was not redriven yet.")
    ] = False,
    value: Annotated[str | None, typer.Option(help="Value to append instead of the record's own.")] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="File whose contents to append instead of the record's value.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Redrive a dead letter that was redriven before.")
    ] = False,
    bootstrap_servers: BootstrapOption = "127.0.0.1:9092",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Append the record of a dead letter to its original topic, once, optionally with a corrected value.

    Example: headwater deadletter redrive orders.deadletter 17

    Example: headwater deadletter redrive orders.deadletter 17 --value '{"product": "tea", "amount": 4}'

    Example: headwater deadletter redrive orders.deadletter --all
    """
    from headwater.clock import SystemClock
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.redrive import RedriveMarks, letter_at, letters_of, redrive

    corrected = _new_value(value, from_file)
    if (letter is None) != everything:
        raise InvalidError(
            "cannot redrive: pass the offset of one dead letter, or --all",
            hint=f"headwater deadletter list {topic} --waiting",
        )
    if everything and (corrected is not None or again):
        raise InvalidError(
            "cannot redrive: --value, --from-file and --again apply to one dead letter, but --all was passed"
        )
    with Client(bootstrap_servers) as client:
        marks = RedriveMarks(client)
        marks.refresh()
        if letter is not None:
            letters = iter([letter_at(client, *_place_of(topic, letter))])
        else:
            letters = (found for found in letters_of(client, topic) if not marks.finished(found))
        outcomes = list(redrive(client, letters, marks, SystemClock(), value=corrected, again=again))
    if output is OutputFormat.JSON:
        print_json({"topic": topic, "letters": [_describe_outcome(outcome) for outcome in outcomes]})
        return
    if everything:
        _print_sums(outcomes)
        return
    for outcome in outcomes:
        print(_outcome_text(outcome))


def _place_of(topic: str, letter: str) -> "tuple[TopicPartition, int]":
    from headwater.record import TopicPartition

    partition, _, offset = letter.rpartition("@")
    if not offset.isdecimal() or not (partition or "0").isdecimal():
        raise InvalidError(f"cannot read {letter!r}: expected OFFSET or PARTITION@OFFSET")
    return TopicPartition(topic, int(partition or 0)), int(offset)


def _new_value(value: str | None, from_file: Path | None) -> bytes | None:
    if value is not None and from_file is not None:
        raise InvalidError("cannot redrive: pass --value or --from-file, not both")
    if from_file is None:
        return None if value is None else value.encode()
    try:
        return from_file.read_bytes()
    except OSError as error:
        raise InvalidError(f"cannot read {str(from_file)!r}: {error.strerror}") from error


def _describe_topic(client: "Client", topic: str, marks: "RedriveMarks") -> dict[str, Any]:
    from headwater.transmit.client.redrive import letters_of

    total, redriven, newest = 0, 0, None
    for letter in letters_of(client, topic):
        total += 1
        redriven += marks.finished(letter)
        newest = letter
    return {
        "topic": topic,
        "letters": total,
        "waiting": total - redriven,
        "redriven": redriven,
        "newestReason": None if newest is None else newest.reason,
    }


def _print_topics(topics: list[dict[str, Any]], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json({"topics": topics})
    else:
        columns = ["topic", "letters", "waiting", "redriven", "newest reason"]
        print_table(columns, [list(topic.values()) for topic in topics])


def _describe(letter: "DeadLetter", marks: "RedriveMarks") -> dict[str, Any]:
    last = marks.last(letter)
    done = last is not None and last.offset is not None
    return {
        "topic": letter.place.topic,
        "partition": letter.place.partition,
        "offset": letter.record.offset,
        "writtenMs": letter.record.timestamp_ms,
        "origin": {
            "topic": letter.origin.topic,
            "partition": letter.origin.partition,
            "offset": letter.origin_offset,
        },
        "reason": letter.reason,
        "by": _by(letter),
        "redriven": _target(last) if done else None,
    }


def _by(letter: "DeadLetter") -> str:
    if letter.queue is not None:
        return f"queue {letter.queue}"
    return "schema" if letter.query is None else f"view {letter.query}"


def _describe_record(record: "Record") -> dict[str, Any]:
    return {
        "timestampMs": record.timestamp_ms,
        "headers": [[name, _readable(value)] for name, value in record.headers],
        "key": _readable(record.key),
        "value": _readable(record.value),
    }


def _readable(value: bytes | None) -> dict[str, str] | None:
    """Return UTF-8 as text and other bytes as hexadecimal digits, so that no byte is lost."""
    if value is None:
        return None
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _shown(value: dict[str, str] | None) -> str:
    if value is None:
        return "null"
    return value["text"] if "text" in value else f"0x{value['hex']}"


def _target(redrive: Any) -> dict[str, Any]:
    return {
        "topic": redrive.target.topic,
        "partition": redrive.target.partition,
        "offset": redrive.offset,
        "times": redrive.time,
    }


def _place(origin: dict[str, Any]) -> str:
    return f"{origin['topic']}-{origin['partition']}@{origin['offset']}"


def _redriven_to(redriven: dict[str, Any] | None) -> str:
    return "" if redriven is None else _place(redriven)


def _describe_outcome(outcome: "Outcome") -> dict[str, Any]:
    return {
        "partition": outcome.letter.place.partition,
        "offset": outcome.letter.record.offset,
        "outcome": "lost" if outcome.lost else "redriven before" if outcome.before else "redriven",
        "redriven": None if outcome.redrive is None else _target(outcome.redrive),
    }


def _outcome_text(outcome: "Outcome") -> str:
    if outcome.redrive is None:
        return (
            f"{outcome.letter.name}: the log has deleted the record and the dead letter has no copy; pass --value"
        )
    place = f"{outcome.redrive.target}@{outcome.redrive.offset}"
    if outcome.before:
        return f"{outcome.letter.name} was redriven before, to {place}; nothing done (pass --again to repeat it)"
    return f"{outcome.letter.name} was redriven to {place}"


def _print_sums(outcomes: "list[Outcome]") -> None:
    lost = sum(outcome.lost for outcome in outcomes)
    print(f"{len(outcomes) - lost} dead letters redriven")
    if lost:
        print(f"{lost} cannot be redriven: the log has deleted the record and the dead letter has no copy")
