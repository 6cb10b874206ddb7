"""Connect to PostgreSQL and map its errors, for the store and the sinks.

Commits on a connection wait for the disk. Locks are awaited for ten seconds. The server ends the sessions of a
machine that is gone.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError, InvalidError, RefusedError, UnavailableError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

_CONNECT_S = 10
_LOCK_WAIT = "10s"
"""The time to wait for another writer's commit; after that, the query is retried later."""
_SILENT_CLIENT = "60s"
"""After this time the server ends an idle transaction, because the writer's machine may be gone."""
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Detects the same during a COPY, and for the client a server that is gone; the default takes hours."""

_TRANSIENT = ("08", "40", "53", "55P03", "55006", "57", "58", "25P03", "25006")
"""Transient classes of SQLSTATE: connection, conflict, resources, lock, shutdown, disk, standby."""

_ROW_ERRORS = ("22", "23")
"""Classes of SQLSTATE about values: data, constraints."""

_REFUSED = re.compile(r"authentication failed|no pg_hba\.conf entry|(database|role) \".*\" does not exist")
"""Messages of rejected connections, for which libpq has no SQLSTATE."""

_LINE = re.compile(r"COPY .*, line (\d+)")


def connect(dsn: str, *, for_whom: str) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect in autocommit mode; raise InvalidError if the driver is not installed."""
    try:
        import psycopg
    except ImportError as error:
        raise InvalidError(
            f"cannot connect to PostgreSQL for {for_whom}: the driver psycopg is not installed",
            hint="pip install 'headwater[postgres]'",
        ) from error
    name = f"headwater {for_whom}"[:63]
    options = {"application_name": name, "connect_timeout": _CONNECT_S, **_KEEPALIVES}
    with explained(f"connect to PostgreSQL for {for_whom}"):
        connection = psycopg.connect(dsn, autocommit=True, **options)  # type: ignore[arg-type]
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _prepare(connection: Any) -> None:
    for setting, value in (
        ("lock_timeout", _LOCK_WAIT),
        ("idle_in_transaction_session_timeout", _SILENT_CLIENT),
        *((f"tcp_{name}", str(value)) for name, value in _KEEPALIVES.items()),
        ("client_encoding", "UTF8"),
        ("timezone", "UTC"),
    ):
        connection.execute("select set_config(%s, %s, false)", (setting, value))
    # Spark discards a batch when the sink reports it as written, so it must be on disk by then.
    connection.execute("select set_config('synchronous_commit', 'local', false) "
                       "where current_setting('synchronous_commit') = 'off'")  # fmt: skip


@contextmanager
def explained(attempt: str, rows: "pa.Table | None" = None) -> Iterator[None]:
    """Raise the driver's errors as Headwater's errors."""
    import psycopg

    try:
        yield
    except HeadwaterError:
        raise
    except psycopg.Error as error:
        raise explain(error, attempt, rows) from error
    except (OSError, EOFError) as error:
        raise UnavailableError(f"cannot {attempt}: {error}") from error


def explain(error: "psycopg.Error", attempt: str, rows: "pa.Table | None" = None) -> HeadwaterError:
    """Return Headwater's error for one of the driver's, with table, constraint and row if they are known."""
    import psycopg

    diag = error.diag
    text = (diag.message_primary or str(error).strip() or type(error).__name__).replace("\n", " ")
    message = f"cannot {attempt}: {text}"
    state = diag.sqlstate
    if state is None and isinstance(error, psycopg.DataError):
        return RefusedError(message)
    if state is None:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if not lost or _REFUSED.search(text):
            return InvalidError(message, hint="check the address, the user name and the password, then retry")
        return UnavailableError(message)
    if state.startswith(_TRANSIENT):
        return UnavailableError(message)
    if diag.constraint_name:
        message += f" (constraint {diag.constraint_name!r} of table {diag.table_name!r})"
    if diag.message_detail:
        message += f"; {diag.message_detail}"
    line = _LINE.search(diag.context or "")
    if line is not None:
        message += f"; {(diag.context or '').splitlines()[0]}"
        if rows is not None and int(line[1]) <= rows.num_rows:
            message += f"; row: {rows.slice(int(line[1]) - 1, 1).to_pylist()[0]!r}"
    kind = RefusedError if state.startswith(_ROW_ERRORS) else InvalidError
    return kind(message, hint=diag.message_hint)
