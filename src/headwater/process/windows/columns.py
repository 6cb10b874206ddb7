"""The schema of the table of windows, and of the frames that go into and out of it.

The table has one row for each group and open window. Its columns, in this order: the group's columns, the window's
bounds, the partial results of the aggregates (`folds.is_partial`), `NET`, `HOLD`, then the columns of
`new_window`, then the columns of the trigger's nodes (`trigger_columns`), then `EMITTED`. Names, types and order
are part of a checkpoint: a change makes the state of running queries unreadable.
"""

import polars as pl

NEVER = 2**62
"""A time later than any deadline and any watermark."""

# -- the key --------------------------------------------------------------------------------------------------

START, END = "window_start", "window_end"
"""Bounds of the window in microseconds; the end is exclusive."""

# -- the table of windows -------------------------------------------------------------------------------------

NET = "net"
"""Number of inserted rows minus the number of retracted rows; only if the input has changes."""

HOLD = "hold"
"""Event time of the next pane; only if panes are stamped with the earliest or latest event (`Stamp`)."""

DUE = "due"
"""Watermark at which the window must be examined next: its end, later the end of its lateness."""

WAKE = "wake"
"""Processing time at which the trigger must be examined next, or `NEVER`; only if the trigger has deadlines."""

PENDING = "pending"
"""Number of rows that no pane has contained yet."""

PANE = "pane"
"""Number of panes emitted, which is the index of the next pane."""

NONSPECULATIVE = "nonspeculative"
"""Number of panes emitted after the watermark passed the end."""

FINISHED = "finished"
"""True if the trigger has finished: the window accepts no more rows."""

EMITTED = "emitted"
"""The window's output that is still valid, which the next pane retracts: one row, or a list of rows if windows
merge; only if the mode is retracting."""

# -- rows before they are merged into the table ---------------------------------------------------------------

COUNT = "_n"
"""Number of rows combined into this one. A frame with this column has been combined."""

LAST = "_last"
"""Time of the latest of these rows. Left out, as is `ROWS`, if no window can reject any of them."""

ROWS = "_rows"
"""Those of the combined rows that may have to go to the late ledger, unchanged, as a list of structs."""

GAP = 2**63 - 1
"""Start of combined rows that are in a gap between windows, which have no end."""

AT = "_at"
"""Time that decides in which windows a row belongs: event time or processing time."""

TIME = "_time"
"""Time by which `first`, `last` and `collect` order rows: event time if the rows have one."""

NEW = "_new"
"""True for rows of this step, false for windows that were in the table."""

SESSION = "_session"
"""Number of the session that a span is part of."""

NEW_START, NEW_END = "_start", "_end"
"""Bounds of the window after merging. They differ from `START` and `END` only for sessions that grow or merge."""

# -- panes before they are emitted ----------------------------------------------------------------------------

FIRES = "_fires"
"""True for windows that emit a pane."""

NOT_EMPTY = "_there"
"""False for panes of windows whose rows have all been retracted."""

PANE_TIMING, PANE_NONSPECULATIVE, PANE_IS_FINAL, PANE_TRIGGER = "_timing", "_nonspeculative", "_final", "_trigger"
"""The pane columns `timing`, `nonspeculative_pane`, `is_final` and `trigger`, next to the window's own columns."""

# -- other tables ---------------------------------------------------------------------------------------------

POINT, UNTIL = "at", "until"
"""Table of points (sliding windows, sessions over changes): a time with rows, and the watermark at which it is
discarded."""

LAST_PANE, FORGET = "last_pane", "forget"
"""Table of closed windows: index of the last pane, and the watermark at which the row is discarded."""


def new_window(*, has_deadlines: bool) -> list[pl.Expr]:
    """Return the columns of a window's progress before its first pane, computed from a combined row."""
    return [
        pl.lit(0, pl.Int64).alias(DUE),
        *([pl.lit(NEVER, pl.Int64).alias(WAKE)] if has_deadlines else []),
        pl.col(COUNT).alias(PENDING),
        pl.lit(0, pl.Int32).alias(PANE),
        pl.lit(0, pl.Int32).alias(NONSPECULATIVE),
        pl.lit(False).alias(FINISHED),
    ]


STATE_COLUMNS = frozenset({NET, HOLD, DUE, WAKE, PENDING, NONSPECULATIVE, FINISHED, EMITTED, LAST_PANE, FORGET})
"""Columns of the kernel's tables next to those of the group, which therefore cannot have these names; nor `POINT`
and `UNTIL` for windows that end at events."""
