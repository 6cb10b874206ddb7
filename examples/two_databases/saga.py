"""A saga: a transaction in each database, one after the other, and for each a way to make up for it.

What has happened is in the log, a record for each step. The next thing to do follows from these records alone, so
whoever reads them can go on: the process that began, or another after a crash. A step that may have been done
before the crash is done again; it keeps its name with what it did, so the second time changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import log
import psycopg

TOPIC = "sagas"
DONE = "create table if not exists done (step text primary key)"


class Refused(Exception):
    """A step cannot be done: for a reason of the business, not for a crash."""


@dataclass(frozen=True)
class Step:
    name: str
    database: psycopg.Connection
    do: Callable[[psycopg.Connection], None]
    undo: Callable[[psycopg.Connection], None]


def next_thing(steps: list[Step], events: list[str]) -> tuple[str, Step] | None:
    """What comes after these events: a step forward; or back, once a step was refused; None at the end."""
    done = [step for step in steps if f"do {step.name}" in events and f"undo {step.name}" not in events]
    if any(event.startswith("refused") for event in events):
        return ("undo", done[-1]) if done else None
    left = [step for step in steps if step not in done]
    return ("do", left[0]) if left else None


def run(saga: str, steps: list[Step], servers: str) -> list[str]:
    """Begin the saga, or go on with it; returns all its events."""
    while True:
        records = [(offset, value) for offset, key, value in log.read(servers, TOPIC) if key == saga]
        events = [event for _, event in records]
        thing = next_thing(steps, events)
        if thing is None:
            return events
        what, step = thing
        event = f"{what} {step.name}"
        try:
            once(step.database, f"{saga}: {event}", step.do if what == "do" else step.undo)
        except Refused:
            event = f"refused {step.name}"
        # Only if nobody else goes on with this saga: then it is theirs.
        log.append(servers, TOPIC, saga, event, after=records[-1][0] if records else -1)


def once(database: psycopg.Connection, name: str, work: Callable[[psycopg.Connection], None]) -> None:
    """Do the work in one transaction with its name, unless the name is there."""
    with database.transaction():
        if database.execute("insert into done values (%s) on conflict do nothing", (name,)).rowcount:
            work(database)
