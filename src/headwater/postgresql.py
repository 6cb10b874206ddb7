"""PostgreSQL, for all who write to it: how to connect, and what it says as errors of ours.

A connection waits for its commits to be on the disk, ten seconds for others, and does not outlive its machine.
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
"""How long to wait for another writer's commit; longer, and the query tries again later."""
_SILENT_CLIENT = "60s"
"""After this the server ends a transaction whose writer says nothing: its machine has gone."""
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""The same in the middle of a COPY, and for us when the server's machine has gone; the default is hours."""

_PASSING = ("08", "40", "53", "55P03", "55006", "57", "58", "25P03", "25006")
"""Classes of SQLSTATE that pass: connection, conflict, resources, a lock, shutdown, disk, a standby."""

_OF_A_ROW = ("22", "23")
"""Classes of SQLSTATE that are about values: data, constraints."""

_REFUSED = re.compile(r"authentication failed|no pg_hba\.conf entry|(database|role) \".*\" does not exist")
"""What a server says to who may not come in; that has no SQLSTATE in libpq."""

_LINE = re.compile(r"COPY .*, line (\d+)")


def connect(dsn: str, *, for_whom: str) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect, in autocommit mode; an InvalidError says so if there is no driver."""
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
    # Spark forgets a batch when we say that it is there: it must be on the disk by then.
    connection.execute("select set_config('synchronous_commit', 'local', false) "
                       "where current_setting('synchronous_commit') = 'off'")  # fmt: skip


@contextmanager
def explained(attempt: str, rows: "pa.Table | None" = None) -> Iterator[None]:
    """Raise what the driver raises as an error of ours."""
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
    """The error of ours for one of the driver's; names table, constraint and row where the server told them."""
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
            return InvalidError(message, hint="check the address, the name and the password, and try again")
        return UnavailableError(message)
    if state.startswith(_PASSING):
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
    kind = RefusedError if state.startswith(_OF_A_ROW) else InvalidError
    return kind(message, hint=diag.message_hint)
