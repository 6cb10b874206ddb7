"""Two-phase commit: two PostgreSQL databases change at once, and the decision is a record in the log.

Both prepare, which is a promise to commit whatever happens. The decision is the first record of the transaction's
name in the log; the log takes one only. Then both are told. Whoever finds a prepared transaction later does what
the log says; if it says nothing, they decide that it is given up, and say so in the log first.

Connections are in autocommit mode, so that each line of SQL here is all that is sent.
"""

from collections.abc import Callable

import log
import psycopg
from psycopg.sql import SQL

TOPIC = "decisions"
COMMIT, ABORT = "commit", "abort"
OURS = "headwater:"
"""Marks our transactions among those that others have prepared."""

Work = Callable[[psycopg.Connection], None]


def change_both(name: str, databases: list[psycopg.Connection], works: list[Work], servers: str) -> str:
    """Do each work in its database, all or none; returns what was decided."""
    try:
        for database, work in zip(databases, works, strict=True):
            prepare(database, name, work)
        wish = COMMIT
    except psycopg.Error:
        wish = ABORT
    decision = decide(name, wish, servers)
    for database in databases:
        end(database, name, decision)
    return decision


def prepare(database: psycopg.Connection, name: str, work: Work) -> None:
    """Do the work, and have the database promise to commit it."""
    # A server has one list for all its databases, so each needs a name of its own.
    gid = f"{OURS}{name}@{database.info.dbname}"
    database.execute("begin")
    try:
        work(database)
        database.execute(SQL("prepare transaction {}").format(gid))
    except psycopg.Error:
        database.execute("rollback")
        raise


def decide(name: str, wish: str, servers: str) -> str:
    """Put the decision into the log, unless there is one; returns the one that counts."""
    try:
        log.append(servers, TOPIC, name, wish, after=-1)
        return wish
    except log.NotTheFirst:
        return next(value for _, key, value in log.read(servers, TOPIC) if key == name)


def end(database: psycopg.Connection, name: str, decision: str) -> None:
    """Carry the decision out, if the database still waits for it."""
    gid = waiting(database).get(name)
    if gid is not None:
        what = SQL("commit prepared {}") if decision == COMMIT else SQL("rollback prepared {}")
        database.execute(what.format(gid))


def waiting(database: psycopg.Connection) -> dict[str, str]:
    """What is prepared here and not ended: the transactions' names, and the database's names for them."""
    found = database.execute(
        "select gid from pg_prepared_xacts where database = current_database() and gid like %s", (OURS + "%",)
    )
    return {gid.removeprefix(OURS).rpartition("@")[0]: gid for (gid,) in found}


def recover(databases: list[psycopg.Connection], servers: str) -> dict[str, str]:
    """End whatever was left prepared, after a crash; returns what was decided of each.

    Run it when the process that began them is gone. If it is not, nothing breaks: the log has one decision.
    """
    names = {name for database in databases for name in waiting(database)}
    decisions = {name: decide(name, ABORT, servers) for name in sorted(names)}
    for name, decision in decisions.items():
        for database in databases:
            end(database, name, decision)
    return decisions
