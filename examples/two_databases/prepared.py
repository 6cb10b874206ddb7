"""Two-phase commit: two PostgreSQL databases change at once, and the decision is a record in the log.

Both prepare, which is a promise to commit whatever happens. The decision is the first record of the transaction's
name in the log; the log takes one only. Then both are told. Whoever finds a prepared transaction later does what
the log says; if it says nothing, they decide that it is given up, and say so in the log first.
"""

from collections.abc import Callable

import log
import psycopg

TOPIC = "decisions"
COMMIT, ABORT = "commit", "abort"

Work = Callable[[psycopg.Connection], None]


def change_both(name: str, databases: list[psycopg.Connection], works: list[Work], servers: str) -> str:
    """Do each work in its database, all or none; returns what was decided."""
    try:
        for database, work in zip(databases, works, strict=True):
            database.tpc_begin(name)
            work(database)
            database.tpc_prepare()
    except psycopg.Error:
        decision = decide(name, ABORT, servers)
    else:
        decision = decide(name, COMMIT, servers)
    for database in databases:
        end(database, name, decision)
    return decision


def decide(name: str, wish: str, servers: str) -> str:
    """Put the decision into the log, unless there is one; returns the one that counts."""
    try:
        log.append(servers, TOPIC, name, wish, after=-1)
        return wish
    except log.NotTheFirst:
        return next(value for _, key, value in log.read(servers, TOPIC) if key == name)


def end(database: psycopg.Connection, name: str, decision: str) -> None:
    """Carry the decision out, if the database still waits for it."""
    database.rollback()  # of a work that failed before it was prepared
    if name in (xid.gtrid for xid in database.tpc_recover()):
        database.rollback()
        database.tpc_commit(name) if decision == COMMIT else database.tpc_rollback(name)


def recover(databases: list[psycopg.Connection], servers: str) -> dict[str, str]:
    """End whatever was left prepared, after a crash; returns what was decided of each.

    Run it when the process that began them is gone. If it is not, nothing breaks: the log has one decision.
    """
    waiting = set()
    for database in databases:
        waiting |= {xid.gtrid for xid in database.tpc_recover()}
        database.rollback()
    decisions = {name: decide(name, ABORT, servers) for name in sorted(waiting)}
    for name, decision in decisions.items():
        for database in databases:
            end(database, name, decision)
    return decisions
