"""Two-phase commit: change two PostgreSQL databases at once, with the decision as a record in the log.

Both databases prepare, which is a promise to commit. The decision is the first record with the transaction's name
in the log, which accepts only one. Then both databases carry it out. A recovery that finds a prepared transaction
follows the decision in the log; if there is none, it first records the decision to abort.

Connections must be in autocommit mode, so that no SQL is sent except the statements below.
"""

from collections.abc import Callable

import log
import psycopg
from psycopg.sql import SQL

TOPIC = "decisions"
COMMIT, ABORT = "commit", "abort"
OURS = "headwater:"
"""Prefix that identifies our prepared transactions among those of other programs."""

Work = Callable[[psycopg.Connection], None]


def change_both(name: str, databases: list[psycopg.Connection], works: list[Work], servers: str) -> str:
    """Run each work in its database, all or none, and return the decision."""
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
    """Run the work and prepare its transaction."""
    # Prepared transactions of all databases of a server share one namespace.
    gid = f"{OURS}{name}@{database.info.dbname}"
    database.execute("begin")
    try:
        work(database)
        database.execute(SQL("prepare transaction {}").format(gid))
    except psycopg.Error:
        database.execute("rollback")
        raise


def decide(name: str, wish: str, servers: str) -> str:
    """Append the decision to the log unless it has one already; return the decision in the log."""
    try:
        log.append(servers, TOPIC, name, wish, after=-1)
        return wish
    except log.NotTheFirst:
        return next(value for _, key, value in log.read(servers, TOPIC) if key == name)


def end(database: psycopg.Connection, name: str, decision: str) -> None:
    """Commit or roll back the prepared transaction, if it still exists."""
    gid = waiting(database).get(name)
    if gid is not None:
        what = SQL("commit prepared {}") if decision == COMMIT else SQL("rollback prepared {}")
        database.execute(what.format(gid))


def waiting(database: psycopg.Connection) -> dict[str, str]:
    """Return the prepared transactions of this database: PostgreSQL's gid by transaction name."""
    found = database.execute(
        "select gid from pg_prepared_xacts where database = current_database() and gid like %s", (OURS + "%",)
    )
    return {gid.removeprefix(OURS).rpartition("@")[0]: gid for (gid,) in found}


def recover(databases: list[psycopg.Connection], servers: str) -> dict[str, str]:
    """End the transactions that a crash left prepared, and return the decision for each.

    Run it after the process that started them has died. If that process is still alive, nothing breaks, because
    the log has only one decision.
    """
    names = {name for database in databases for name in waiting(database)}
    decisions = {name: decide(name, ABORT, servers) for name in sorted(names)}
    for name, decision in decisions.items():
        for database in databases:
            end(database, name, decision)
    return decisions
