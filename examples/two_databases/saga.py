"""A saga: one transaction in each database, one after the other, each with a compensation.

The log has a record for each completed step. The next action follows from these records alone, so any process can
continue: the one that started the saga, or another one after a crash. A step that may have been done before the
crash is repeated; it stores its name in its transaction, so the second time changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import log
import psycopg

TOPIC = "sagas"
DONE = "create table if not exists done (step text primary key)"


class Refused(Exception):
    """A step is not possible for a business reason, such as no credit."""


@dataclass(frozen=True)
class Step:
    name: str
    database: psycopg.Connection
    do: Callable[[psycopg.Connection], None]
    undo: Callable[[psycopg.Connection], None]


def next_action(steps: list[Step], events: list[str]) -> tuple[str, Step] | None:
    """Return the action after these events: do the next step, undo one after a refusal, or None at the end."""
    done = [step for step in steps if f"do {step.name}" in events and f"undo {step.name}" not in events]
    if any(event.startswith("refused") for event in events):
        return ("undo", done[-1]) if done else None
    left = [step for step in steps if step not in done]
    return ("do", left[0]) if left else None


def run(saga: str, steps: list[Step], servers: str) -> list[str]:
    """Start or continue the saga, and return all its events."""
    while True:
        records = [(offset, value) for offset, key, value in log.read(servers, TOPIC) if key == saga]
        events = [event for _, event in records]
        action = next_action(steps, events)
        if action is None:
            return events
        what, step = action
        event = f"{what} {step.name}"
        try:
            once(step.database, f"{saga}: {event}", step.do if what == "do" else step.undo)
        except Refused:
            event = f"refused {step.name}"
        # Fails with NotTheFirst if another process has continued this saga.
        log.append(servers, TOPIC, saga, event, after=records[-1][0] if records else -1)


def once(database: psycopg.Connection, name: str, work: Callable[[psycopg.Connection], None]) -> None:
    """Run the work and store its name in one transaction, unless the name is already stored."""
    with database.transaction():
        if database.execute("insert into done values (%s) on conflict do nothing", (name,)).rowcount:
            work(database)
