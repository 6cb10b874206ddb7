"""What PostgreSQL says, as errors of ours: what passes by itself, and what somebody has to mend."""

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.errors import HeadwaterError, InvalidError, UnavailableError

if TYPE_CHECKING:
    import psycopg

_PASSING = ("08", "40", "53", "55P03", "55006", "57", "58", "25P03", "25006")
"""Classes of SQLSTATE that pass: connection, conflict, resources, a lock, shutdown, disk, a standby."""

_REFUSED = re.compile(r"authentication failed|no pg_hba\.conf entry|(database|role) \".*\" does not exist")
"""What a server says to who may not come in; that has no SQLSTATE in libpq."""

_LINE = re.compile(r"COPY .*, line (\d+)")


def explain(error: "psycopg.Error", attempt: str, rows: pa.Table | None = None) -> HeadwaterError:
    """The error of ours for one of the driver's; names table, constraint and row where the server told them."""
    import psycopg

    diag = error.diag
    text = (diag.message_primary or str(error).strip() or type(error).__name__).replace("\n", " ")
    message = f"cannot {attempt}: {text}"
    state = diag.sqlstate
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
    return InvalidError(message, hint=diag.message_hint)
