"""The late ledger: every row that arrived after its window had closed, with its delay and the window it missed.

The ledger is in the store of the views and written in the transaction of the batch that found the rows late. So a
row is either in its window or in the ledger, never in both and never in neither, even after a crash.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.store.databases.engine import Db

SCHEMA = (
    """create table if not exists headwater_late (
    view text not null, number bigint not null, batch bigint not null, operator text not null,
    key text not null, window_start bigint, window_end bigint, event_time bigint, late_by bigint,
    reason text not null, last_pane bigint, row text not null,
    reprocessed integer not null default 0, primary key (view, number))""",
)

_COLUMNS = """
    number, batch, operator, key, window_start, window_end, event_time, late_by, reason, last_pane, row,
    reprocessed
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRow:
    """A row that arrived too late for its window, table or join; times are microseconds since 1970, UTC.

    Window and time are None if there are none. `late_by` is the distance to the watermark, `last_pane` the number
    of the last pane that the window had emitted (None if no longer known). `number` grows by one with each late
    row of a view.
    """

    operator: str
    key: dict[str, Any]
    window_start: int | None
    window_end: int | None
    event_time: int | None
    late_by: int | None
    reason: str
    last_pane: int | None
    row: dict[str, Any]
    batch: int = -1
    number: int = 0
    reprocessed: bool = False


def allow_nulls(db: Db) -> None:
    """Migrate a ledger of an earlier version, in SQLite, which required a window and a time in every row."""
    columns = db.execute("pragma table_info(headwater_late)").fetchall()
    if any(name == "window_start" and not_null for _, name, _, not_null, *_ in columns):
        for statement in (
            "alter table headwater_late rename to headwater_late_before",
            *SCHEMA,
            "insert into headwater_late select * from headwater_late_before",
            "drop table headwater_late_before",
        ):
            db.execute(statement)


def add_late(db: Db, view: str, batch: int, rows: Sequence[LateRow]) -> None:
    """Append the late rows of a batch, in the caller's transaction."""
    if not rows:
        return
    last = last_number(db, view)
    db.executemany(
        "insert into headwater_late values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        (
            (
                *(view, number, batch, row.operator, json.dumps(row.key), row.window_start, row.window_end),
                *(row.event_time, row.late_by, row.reason, row.last_pane, json.dumps(row.row)),
            )
            for number, row in enumerate(rows, last + 1)
        ),
    )


def last_number(db: Db, view: str) -> int:
    """Return the number of a view's last late row; they are numbered from 1 without gaps."""
    return int(db.execute("select max(number) from headwater_late where view = ?", (view,)).fetchone()[0] or 0)


def clear_late(db: Db, view: str) -> None:
    """Delete a view's late rows: the view starts over, and the rows may be in time then."""
    db.execute("delete from headwater_late where view = ?", (view,))


def rename_late(db: Db, view: str, name: str) -> None:
    """Assign the late rows of a view to another one, which has none."""
    db.execute("update headwater_late set view = ? where view = ?", (name, view))


def read_late(db: Db, view: str, *, after: int, limit: int) -> list[LateRow]:
    """Return the late rows of a view after a number, in order of arrival."""
    found = db.execute(
        f"select {_COLUMNS} from headwater_late where view = ? and number > ? order by number limit ?",
        (view, after, limit),
    )
    return [_row(*values) for values in found]


def count_late(db: Db) -> dict[str, tuple[int, int]]:
    """Return, for each view with late rows, their number and how many are not reprocessed yet."""
    found = db.execute(
        "select view, count(*), sum(1 - reprocessed) from headwater_late group by view order by view"
    )
    return {view: (total, waiting) for view, total, waiting in found}


def mark_reprocessed(db: Db, view: str, numbers: Sequence[int]) -> None:
    """Mark rows as reprocessed: their windows were recomputed with them."""
    db.executemany(
        "update headwater_late set reprocessed = 1 where view = ? and number = ?", ((view, n) for n in numbers)
    )


def _row(*values: Any) -> LateRow:
    number, batch, operator, key, start, end, at, late_by, reason, last_pane, row, reprocessed = values
    return LateRow(
        operator=operator,
        key=json.loads(key),
        window_start=start,
        window_end=end,
        event_time=at,
        late_by=late_by,
        reason=reason,
        last_pane=last_pane,
        row=json.loads(row),
        batch=batch,
        number=number,
        reprocessed=bool(reprocessed),
    )
